#!/usr/bin/env python3
"""Drives `fastdecode bench serve` against a server that plays what it is told, faults and all.

usage: serve_client_test.py PROGRAM [unittest arguments]
"""
import json
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).parent))
from bench_serve import DETAILED_KEYS, KEYS, LIMIT_S, PROGRAM, SCRATCH, BenchServe, bench, prompts_file, run_tests
from fake_completions_server import FakeServer


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
    run_tests()
