#!/usr/bin/env python3
"""Drives `fastdecode bench serve` against a server that plays what it is told, faults and all.

usage: serve_client_test.py PROGRAM [unittest arguments]
"""
import atexit
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(1, str(pathlib.Path(__file__).parent))
from fake_completions_server import FakeServer

PROGRAM = None
LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", "120"))
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="bench_serve_"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

# What `vllm bench serve` of vLLM 0.33.0 writes of a run of completions (vllm/benchmarks/serve.py), with the metrics that are
# chosen here and percentile 99; with --save-detailed also the second list.
KEYS = {"date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness",
        "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "latencies", "queue_times",
        "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"} | {
            f"{what}_{metric}_ms" for what in ("mean", "median", "std", "p99") for metric in ("ttft", "tpot", "itl", "e2el")}
DETAILED_KEYS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}


def bench(server, *arguments, **more):
    url = server if isinstance(server, str) else server.url
    return subprocess.run([PROGRAM, "bench", "serve", "--url", url, *map(str, arguments)], capture_output=True, text=True,
                          timeout=LIMIT_S, **more)


def prompts_file(*prompts):
    path = SCRATCH / f"prompts{len(list(SCRATCH.iterdir()))}.txt"
    path.write_text("".join((p if isinstance(p, str) else json.dumps(p)) + "\n" for p in prompts))
    return path


class BenchServe(unittest.TestCase):
    def result(self, process, stderr=""):
        self.assertEqual((process.returncode, process.stderr), (0, stderr))
        return json.loads(process.stdout)

    def refused(self, process, *needles):
        self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
        for needle in needles:
            self.assertIn(needle, process.stderr)


class Figures(BenchServe):
    def test_keys_and_counts(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "7 ms=5", "--num-prompts", 6, "--concurrency", 2, "--json"))
        self.assertEqual(set(out), KEYS)
        self.assertEqual([out[key] for key in ("completed", "failed", "total_input_tokens", "total_output_tokens", "model_id",
                                               "num_prompts", "max_concurrency", "request_rate", "request_goodput")],
                         [6, 0, 12, 42, "fake", 6, 2, "inf", None])
        self.assertEqual(server.in_flight_max, 2)
        # One for the first look, one for the question after models, and those of the load, which are kept.
        self.assertEqual(server.connections, 4)
        self.assertAlmostEqual(out["output_throughput"] * out["duration"], 42)
        self.assertEqual({(body["model"], body["stream"], body["max_tokens"]) for body in server.bodies()}, {("fake", True, 128)})
        self.assertEqual({body["stream_options"]["include_usage"] for body in server.bodies()}, {True})

    def test_times_are_not_below_the_pauses(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "5 first_ms=60 ms=20", "--num-prompts", 4, "--concurrency", 4,
                                    "--save-detailed", "--json"))
        self.assertEqual(set(out), KEYS | DETAILED_KEYS)
        for ttft, itls, latency in zip(out["ttfts"], out["itls"], out["latencies"]):
            self.assertEqual(len(itls), 4)
            self.assertGreaterEqual(ttft, 0.079)
            self.assertGreaterEqual(latency, 0.159)
            self.assertAlmostEqual(ttft + sum(itls), latency)
        self.assertGreaterEqual(out["duration"], max(out["latencies"]))
        self.assertEqual(out["generated_texts"], ["w0 w1 w2 w3 w4 "] * 4)
        self.assertEqual((out["input_lens"], out["output_lens"], out["errors"]), ([3] * 4, [5] * 4, [""] * 4))
        tpots = [(latency - ttft) / 4 * 1000 for ttft, latency in zip(out["ttfts"], out["latencies"])]
        self.assertAlmostEqual(out["mean_tpot_ms"], sum(tpots) / 4)
        self.assertAlmostEqual(out["mean_ttft_ms"], sum(out["ttfts"]) / 4 * 1000)

    def test_next_begins_as_one_ends(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "2 ms=50", "--num-prompts", 4, "--concurrency", 1, "--save-detailed",
                                    "--percentile-metrics", "client_queue_time", "--json"))
        ends = [start + latency for start, latency in zip(out["start_times"], out["latencies"])]
        for end, start in zip(ends, out["start_times"][1:]):
            self.assertGreaterEqual(start, end)
        self.assertGreaterEqual(out["p99_client_queue_time_ms"], 280)
        self.assertNotIn("mean_ttft_ms", out)

    def test_chunks_count_where_there_is_no_usage(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "9 no-usage", "--num-prompts", 1, "--json"))
        self.assertEqual(out["total_output_tokens"], 9)

    def test_reads_cut_anywhere(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "4 split", "--num-prompts", 2, "--save-detailed", "--json"))
        self.assertEqual(out["generated_texts"], ["w0 w1 w2 w3 "] * 2)

    def test_whole_answers(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "4 ms=10", "--num-prompts", 2, "--no-stream", "--save-detailed", "--json"))
            self.assertEqual([body["stream"] for body in server.bodies()], [False, False])
            self.refused(bench(server, "--no-stream", "--percentile-metrics", "e2el,itl"), "--percentile-metrics", "itl")
            self.refused(bench(server, "--no-stream", "--goodput", "ttft:3"), "--goodput", "ttft")
            errors = bench(server, "--prompts-file", prompts_file("1 error-200", "1 broken-body", "1"), "--no-stream", "--json")
        self.assertEqual(out["total_output_tokens"], 8)
        self.assertGreaterEqual(min(out["latencies"]), 0.039)
        self.assertNotIn("mean_ttft_ms", out)
        self.assertEqual((errors.returncode, json.loads(errors.stdout)["failed"]), (0, 2))
        self.assertIn("1 x the answer is an error: it broke", errors.stderr)

    def test_table(self):
        with FakeServer() as server:
            process = bench(server, "--prompt", "3", "--num-prompts", 5, "--metric-percentiles", "50,99.9", "--goodput", "ttft:1e6",
                            "e2el:1e6")
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        rows = dict(map(str.strip, line.rsplit(":", 1)) for line in process.stdout.splitlines() if ":" in line)
        self.assertEqual(int(rows["Successful requests"]), 5)
        self.assertEqual(int(rows["Total generated tokens"]), 15)
        for name in ("Request goodput (req/s)", "Mean TTFT (ms)", "P50 TPOT (ms)", "P99.9 ITL (ms)", "Median E2EL (ms)"):
            self.assertGreaterEqual(float(rows[name]), 0)
        self.assertEqual(rows["Request goodput (req/s)"], rows["Request throughput (req/s)"])


class Requests(BenchServe):
    def test_random_ids(self):
        def ids(*arguments):
            with FakeServer(vocab_size=50) as server:
                self.result(bench(server, "--num-prompts", 20, "--random-input-len", 10, "--random-output-len", 3, "--json",
                                  *arguments))
            return [body["prompt"] for body in server.bodies()], [body["max_tokens"] for body in server.bodies()]
        prompts, lengths = ids()
        self.assertEqual(({len(prompt) for prompt in prompts}, set(lengths)), ({10}, {3}))
        drawn = {i for prompt in prompts for i in prompt}
        self.assertTrue(drawn <= set(range(50)) and len(drawn) > 25)
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 20)
        self.assertEqual(ids()[0], prompts)
        self.assertNotEqual(ids("--seed", 1)[0], prompts)
        self.assertTrue({i for prompt in ids("--vocab", "7-9")[0] for i in prompt} == {7, 8, 9})
        prompts, lengths = ids("--random-range-ratio", "0.5")
        self.assertTrue({len(prompt) for prompt in prompts} <= set(range(5, 16)) and len({len(p) for p in prompts}) > 1)
        self.assertTrue(set(lengths) <= set(range(1, 6)))

    def test_random_ids_need_a_vocabulary(self):
        with FakeServer() as server:
            self.refused(bench(server, "--num-prompts", 1), "--vocab LOW-HIGH", "--random-text", "/tokenizer_info")
            out = self.result(bench(server, "--num-prompts", 1, "--random-text", "--random-input-len", 9, "--json"))
        self.assertEqual((out["total_input_tokens"], len(server.bodies()[0]["prompt"].split())), (9, 9))

    def test_fields(self):
        with FakeServer() as server:
            self.result(bench(server, "--prompt", "1", "--num-prompts", 1, "--model", "m", "--ignore-eos", "--temperature", 0.5,
                              "--logprobs", 2, "--output-len", 7, "--json"))
            body = server.bodies()[-1]
            self.result(bench(server, "--prompt", "1", "--num-prompts", 1, "--json"))
        self.assertEqual({key: body[key] for key in ("model", "ignore_eos", "temperature", "logprobs", "max_tokens")},
                         {"model": "m", "ignore_eos": True, "temperature": 0.5, "logprobs": 2, "max_tokens": 7})
        self.assertEqual(set(server.bodies()[-1]), {"model", "prompt", "max_tokens", "stream", "stream_options"})

    def test_prompts_file(self):
        path = prompts_file("3 a", "", {"prompt": "2 b", "max_tokens": 9}, {"prompt": [4, 5, 6]})
        with FakeServer() as server:
            out = self.result(bench(server, "--prompts-file", path, "--output-len", 5, "--json"))
            self.assertEqual([(body["prompt"], body["max_tokens"]) for body in server.bodies()],
                             [("3 a", 5), ("2 b", 9), ([4, 5, 6], 5)])
            self.assertEqual((out["num_prompts"], out["total_output_tokens"]), (3, 10))
            out = self.result(bench(server, "--prompts-file", path, "--num-prompts", 5, "--json"))
            self.assertEqual(out["completed"], 5)
            for line, needles in [('{"prompt"', ("no JSON",)), ('{"prompt": 3}', ("prompt",)), ('{"max_tokens": 3}', ("no prompt",)),
                                  ('{"prompt": "a", "max_tokens": 0}', ("max_tokens", "0")), ('{"prompt": "a", "n": 2}', ("'n'",)),
                                  ('{"prompt": []}', ("prompt",))]:
                self.refused(bench(server, "--prompts-file", prompts_file("a", line)), ":2:", *needles)
            self.refused(bench(server, "--prompts-file", prompts_file("")), "--prompts-file", "no prompt")
            self.refused(bench(server, "--prompts-file", SCRATCH / "none"), "none")

    def test_warmup_does_not_count(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "2", "--num-prompts", 3, "--warmup", 4, "--json"))
            self.refused(bench(server, "--prompt", "2 status", "--num-prompts", 3, "--num-warmups", 1), "warm-up", "the queue is full")
        self.assertEqual((out["completed"], out["total_output_tokens"]), (3, 6))
        self.assertEqual(len(server.bodies()), 8)

    def test_key(self):
        path = SCRATCH / "key"
        path.write_text("secret\nsecond line\n")
        with FakeServer() as server:
            self.result(bench(server, "--prompt", "1", "--num-prompts", 1, "--api-key-file", path, "--json"))
            self.assertEqual({headers["authorization"] for _, _, headers, _ in server.requests}, {"Bearer secret"})
            for text in ("\n", "a b\n"):
                path.write_text(text)
                self.refused(bench(server, "--api-key-file", path), "--api-key-file", str(path))

    def test_prefix_and_unix_socket(self):
        with FakeServer() as server:
            self.result(bench(server.url + "/a/v1/", "--prompt", "1", "--num-prompts", 1, "--json"))
            self.assertEqual([target for _, target, _, _ in server.requests], ["/a/v1/models", "/a/v1/completions"])
        with FakeServer(path=str(SCRATCH / "s")) as server:
            self.result(bench(server, "--prompt", "1", "--num-prompts", 3, "--json"))
            self.assertEqual(len(server.bodies()), 3)


class Results(BenchServe):
    def test_files(self):
        with FakeServer(model="a/b") as server:
            load = ("--prompt", "2", "--num-prompts", 2)
            process = bench(server, *load, "--result-filename", SCRATCH / "r.json")
            self.assertIn("Serving Benchmark Result", process.stdout)
            self.assertEqual(set(json.loads((SCRATCH / "r.json").read_text())), KEYS)
            folder = SCRATCH / "folder"
            folder.mkdir()
            bench(server, *load, "--save-result", "--save-detailed", cwd=folder)
            name, = folder.iterdir()
            self.assertRegex(name.name, r"^openai-infqps-concurrency1-b-\d{8}-\d{6}\.json$")
            self.assertEqual(set(json.loads(name.read_text())), KEYS | DETAILED_KEYS)
            sent = len(server.bodies())
            self.refused(bench(server, *load, "--result-filename", SCRATCH / "none" / "r"), "--result-filename")
            self.assertEqual(len(server.bodies()), sent)


BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
100,GPT-4,8,3,11,API log
100.1,GPT-4,5,0,5,API log
100.2,ChatGPT,6,2,8,Conversation log
"""


class OpenLoop(BenchServe):
    def test_requests_start_at_their_times(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "2 ms=100", "--num-prompts", 5, "--request-rate", 20, "--arrivals", "constant",
                                    "--save-detailed", "--json"))
        self.assertEqual(set(out), KEYS | DETAILED_KEYS)
        self.assertEqual((out["completed"], out["request_rate"], out["max_concurrency"]), (5, 20, None))
        intended = [start - queued for start, queued in zip(out["start_times"], out["queue_times"])]
        for i, at in enumerate(intended):  # whatever became of those before
            self.assertAlmostEqual(at - intended[0], i / 20, delta=0.001)
        self.assertGreaterEqual(server.in_flight_max, 3)
        self.assertGreaterEqual(out["max_concurrent_requests"], 3)

    def test_waiting_for_a_place_counts(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "2 ms=100", "--num-prompts", 3, "--request-rate", 1000, "--arrivals", "constant",
                                    "--max-concurrency", 1, "--save-detailed", "--json"))
        self.assertEqual((server.in_flight_max, out["max_concurrency"]), (1, 1))
        self.assertGreaterEqual(out["ttfts"][2], 0.49)  # two others of 200 ms, and its own first token
        self.assertGreaterEqual(out["queue_times"][2], 0.39)

    def test_burstiness_of_vllm(self):
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "1", "--num-prompts", 5, "--request-rate", 200, "--burstiness", 0.5, "--json"))
        self.assertEqual(out["burstiness"], 0.5)

    def test_workload_has_exactly_its_lengths(self):
        with FakeServer(vocab_size=50) as server:
            self.result(bench(server, "--workload", "distserve", "--scale-lengths", 0.125, "--num-prompts", 3, "--json"))
        for body in server.bodies():
            self.assertEqual((len(body["prompt"]), body["max_tokens"], body["min_tokens"], body["ignore_eos"]), (64, 8, 8, True))

    def test_trace(self):
        path = SCRATCH / "burst.csv"
        path.write_text(BURST)
        with FakeServer(vocab_size=50) as server:
            process = bench(server, "--trace", path, "--goodput", "e2el:60000")
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn("1 requests of the trace have no answer", process.stdout)
            self.assertRegex(process.stdout, r"Request rate configured \(RPS\): +5\.00")
            self.assertEqual([(len(body["prompt"]), body["max_tokens"]) for body in server.bodies()], [(8, 3), (6, 2)])
            out = self.result(bench(server, "--trace", path, "--request-rate", 50, "--json"))
            self.assertEqual(out["request_rate"], 50)
            path.write_text(BURST.replace("8,3,11", "8,many,11"))
            self.refused(bench(server, "--trace", path), f"--trace: {path}:2: Response tokens is 'many'")

    def test_rates_make_a_curve(self):
        page = SCRATCH / "curves.html"
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "3 ms=2", "--num-prompts", 20, "--request-rate", "100,200", "--goodput", "ttft:5000",
                                    "reader", "--html", page, "--json"))
        ours = out["fastdecode"]
        self.assertEqual(set(out), KEYS | {"fastdecode"})
        self.assertEqual([rate["request_rate"] for rate in ours["rates"]], [100, 200])
        self.assertEqual(ours["limits_ms"], {"ttft": 5000, "ema_itl": 50})
        self.assertEqual([scaled["scale"] for scaled in ours["slo_scale"]], [2, 1.5, 1.25, 1, 0.75, 0.5])
        text = page.read_text()
        for part in ('<section id="rates">', '<section id="scale">', '<section id="times">', "</html>"):
            self.assertIn(part, text)
        self.assertNotRegex(text, r'(src|href)="?https?:')

    def test_failures_have_missed_their_limits(self):
        with FakeServer() as server:
            process = bench(server, "--prompts-file", prompts_file("1", "1 status", "1", "1 status"), "--request-rate", 100, "--goodput",
                            "e2el:60000", "--json")
        judged = json.loads(process.stdout)["fastdecode"]["run"]
        self.assertEqual((judged["requests"], judged["attained"], judged["attainment"]["all"]), (4, 2, 0.5))

    def test_search_finds_what_a_server_bears(self):
        # One place and 20 ms a request: 50 a second, and less with what the machine takes.
        with FakeServer() as server:
            out = self.result(bench(server, "--prompt", "1 ms=20", "--num-prompts", 30, "--find-max-rate", "--seeds", 1, "--rate-start", 16,
                                    "--precision", 0.3, "--max-concurrency", 1, "--arrivals", "constant", "--goodput", "ttft:200", "--json"))
        found = out["fastdecode"]["max_rate"]
        self.assertTrue(found["searches"][0]["complete"])
        self.assertLess(found["request_rate"], 75)
        self.assertTrue(any("find too high a rate" in note for note in out["fastdecode"]["notes"]))

    def test_interrupted_search_keeps_what_it_has(self):
        with FakeServer() as server:
            process = subprocess.Popen([PROGRAM, "bench", "serve", "--url", server.url, "--prompt", "1", "--find-max-rate", "--goodput",
                                        "e2el:60000", "--rate-start", "100", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
            while len(server.bodies()) < 60 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, err)
        ours = json.loads(out)["fastdecode"]
        self.assertIsNone(ours["max_rate"]["request_rate"])
        self.assertFalse(ours["max_rate"]["searches"][0]["complete"])

    def test_interference(self):
        with FakeServer(vocab_size=50) as server:
            process = bench(server, "--interference", "--decodes", 2, "--random-input-len", 4, "--random-output-len", 1,
                            "--request-rate", 100, "--interference-prompt-len", 7)
            # Answers of one token are over before a prompt could arrive.
            self.refused(process, "--random-output-len", "answers of 1 tokens", "--decodes")

    def test_bad_combinations(self):
        for arguments, needles in [
            (["--find-max-rate"], ("--find-max-rate", "--goodput")), (["--find-max-rate", "--goodput", "ttft:3", "--request-rate", 2], ("--request-rate",)),
            (["--workload", "azure"], ("--workload", "'azure'", "azure_conv")), (["--scale-lengths", 2], ("--scale-lengths", "--workload")),
            (["--workload", "distserve", "--prompt", "a"], ("--workload", "--prompt")), (["--arrivals", "weekly"], ("--arrivals", "weekly", "gamma:SHAPE")),
            (["--arrivals", "constant"], ("--arrivals", "--request-rate")), (["--request-rate", "0"], ("--request-rate", "0")),
            (["--interference"], ("--interference", "--request-rate")), (["--chunks", 64], ("--chunks", "--interference")),
            (["-m", "a", "--url", "http://a"], ("-m", "--url")), (["-m", "a", "--no-stream"], ("--no-stream",)), (["--trace", "/nowhere"], ()),
            (["--html", "/nowhere/a.html"], ("--html", "/nowhere"))]:
            with self.subTest(arguments=arguments):
                self.refused(bench("http://127.0.0.1:1", *arguments) if "-m" not in arguments else
                             subprocess.run([PROGRAM, "bench", "serve", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S), *needles)


class InThisProcess(BenchServe):
    def model(self):
        folder = SCRATCH / "model"
        if not folder.exists():
            subprocess.run([PROGRAM, "synth", "--shape", "tiny-random", "--out", folder], check=True, timeout=LIMIT_S)
        return ["-m", folder, "-q", "--kv-gib", "0.05"]

    def run_model(self, *arguments):
        return subprocess.run([PROGRAM, "bench", "serve", *map(str, [*self.model(), *arguments])], capture_output=True, text=True,
                              timeout=LIMIT_S)

    def test_closed_and_open(self):
        for pace in (["--concurrency", 3], ["--request-rate", 100]):
            out = self.result(self.run_model("--num-prompts", 12, "--workload", "distserve", "--scale-lengths", 0.1, "--save-detailed", *pace,
                                             "--json"))
            self.assertEqual(set(out), KEYS | DETAILED_KEYS)
            self.assertEqual((out["completed"], out["total_input_tokens"], out["total_output_tokens"]), (12, 12 * 51, 12 * 6))
            for ttft, itls, latency in zip(out["ttfts"], out["itls"], out["latencies"]):
                self.assertAlmostEqual(ttft + sum(itls), latency)

    def test_what_does_not_fit_is_refused(self):
        self.refused(self.run_model("--workload", "azure_conv"), "--workload", "context of 512", "--scale-lengths")

    def test_interference_by_chunk(self):
        arguments = ("--interference", "--decodes", 2, "--random-input-len", 4, "--random-output-len", 450, "--request-rate", 200,
                     "--interference-prompt-len", 50, "--chunks", "16,64", "--json")
        for _ in range(5):  # a client that stands still between its requests finds the first answer over
            process = self.run_model(*arguments)
            if "answers are over before" not in process.stderr:
                break
        out = self.result(process)
        for point, chunk in zip(out["fastdecode"]["interference"], (16, 64)):
            self.assertEqual(point["prefill_chunk"], chunk)
            self.assertGreater(point["alone"]["gaps"], 0)
            self.assertGreaterEqual(point["prompts"], 1)


class Failures(BenchServe):
    CASES = {
        "4 status": "HTTP 503: the queue is full", "4 empty-status": "HTTP 500", "4 error-event": "the stream has an error: the home has gone",
        "4 garbage": "an event is no chunk", "4 no-done": "the stream ended without [DONE]",
        "4 cut-chunk": "the server closed the connection within the stream", "4 close-mid": "the server closed the connection within the stream",
        "4 not-sse": "no text/event-stream but 'text/html': <html>", "4 after-done": "went on after [DONE]",
        "4 no-choices": "no chunk with choices", "4 no-http": "the answer is no HTTP",
        "4 silent-close": "the server closed the connection before it answered",
        "4 cut-headers": "the server closed the connection before it answered"}

    def test_each_is_counted_with_its_reason(self):
        for prompt, reason in self.CASES.items():
            with self.subTest(prompt=prompt), FakeServer() as server:
                process = bench(server, "--prompts-file", prompts_file("3", prompt, prompt, "3"), "--json")
                self.assertEqual(process.returncode, 0, process.stderr)
                out = json.loads(process.stdout)
                self.assertEqual((out["completed"], out["failed"], out["total_output_tokens"]), (2, 2, 6))
                self.assertIn("warning: 2 of 4 requests failed:\n  2 x ", process.stderr)
                self.assertIn(reason, process.stderr)
                self.refused(bench(server, "--prompt", prompt, "--num-prompts", 2), "2 of 2 requests failed", reason,
                             "no request succeeded")

    def test_five_reasons_at_most(self):
        with FakeServer() as server:
            process = bench(server, "--prompts-file", prompts_file(*self.CASES, "1"), "--json")
        self.assertEqual(process.returncode, 0)
        self.assertEqual(process.stderr.count(" x "), 5)
        self.assertRegex(process.stderr, r"and \d other reasons")

    def test_server_that_closes_is_connected_to_again(self):
        for fault in ("close-after", "http10"):
            with self.subTest(fault=fault), FakeServer() as server:
                out = self.result(bench(server, "--prompt", f"3 {fault}", "--num-prompts", 4, "--json"))
                self.assertEqual((out["completed"], server.connections), (4, 6))

    def test_timeout(self):
        with FakeServer() as server:
            process = bench(server, "--prompts-file", prompts_file("4", "4 hang", "4"), "--timeout-s", "0.5", "--json")
            self.assertEqual((process.returncode, json.loads(process.stdout)["completed"]), (0, 2))
            self.assertIn("no end within 0.5 s (--timeout-s)", process.stderr)

    def test_no_server(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            self.refused(bench(f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{port}", "refused", "is the server running?")
        self.refused(bench(f"unix:{SCRATCH}/gone"), "unix:", "No such file")
        self.refused(bench("http://no-such-host.invalid"), "no-such-host.invalid")

    def test_server_that_goes(self):
        with FakeServer() as server:
            process = subprocess.Popen([PROGRAM, "bench", "serve", "--url", server.url, "--prompt", "1 ms=20", "--num-prompts",
                                        "300", "--concurrency", "3", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while len(server.bodies()) < 10:
                time.sleep(0.01)
        out, err = process.communicate(timeout=LIMIT_S)
        out = json.loads(out)
        self.assertEqual((process.returncode, out["completed"] + out["failed"]), (0, 300))
        self.assertGreater(out["completed"], 0)
        self.assertIn("cannot connect: Connection refused", err)

    def test_interrupt_prints_what_was_done(self):
        with FakeServer() as server:
            process = subprocess.Popen([PROGRAM, "bench", "serve", "--url", server.url, "--prompt", "3 ms=10", "--num-prompts",
                                        "100000", "--concurrency", "4", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
            while len(server.bodies()) < 20:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        out = json.loads(out)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertGreaterEqual(out["completed"], 10)
        self.assertEqual((out["failed"], out["total_output_tokens"], out["num_prompts"]), (0, 3 * out["completed"], 100000))
        self.assertIn(f"interrupted: {out['completed']} of 100000 requests had ended", err)

    def test_descriptors(self):
        with FakeServer() as server:
            limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            self.refused(bench(server, "--prompt", "1", "--concurrency", 200, preexec_fn=limit), "--concurrency", "200", "ulimit -n")
            soft = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (50, 4096))
            out = self.result(bench(server, "--prompt", "1 ms=50", "--concurrency", 200, "--num-prompts", 200, "--json", preexec_fn=soft))
            self.assertEqual((out["completed"], server.in_flight_max), (200, 200))

    def test_bad_options(self):
        for arguments, needles in [
            (["--url", "https://a"], ("--url", "https://a", "TLS")), (["--url", "a:1"], ("--url", "'a:1'")),
            (["--url", "http://a:0"], ("--url", "port")), (["--url", "http://:1"], ("--url", "no host")),
            (["--url", "http://[::1"], ("--url", "]")), (["--url", "http://a/?x"], ("--url", "?")), (["--url", "unix:"], ("--url",)),
            (["--concurrency", 0], ("--concurrency", "0")), (["--vocab", "9-7"], ("--vocab", "9-7")), (["--vocab", "x"], ("--vocab", "LOW-HIGH")),
            (["--goodput", "itl:3"], ("--goodput", "itl:3")), (["--goodput", "ttft:-1"], ("--goodput", "ttft:-1")), (["--goodput", "ttft"], ("--goodput",)),
            (["--percentile-metrics", "ttft,x"], ("--percentile-metrics", "'x'")), (["--metric-percentiles", "101"], ("--metric-percentiles", "101")),
            (["--prompt", "a", "--random-text"], ("--prompt", "--random-text")), (["--timeout-s", "0"], ("--timeout-s",)),
            (["--random-range-ratio", "2"], ("--random-range-ratio", "2"))]:
            with self.subTest(arguments=arguments):
                process = subprocess.run([PROGRAM, "bench", "serve", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)
                self.refused(process, *needles)


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])
