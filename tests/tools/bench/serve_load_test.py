#!/usr/bin/env python3
"""Drives what `fastdecode bench serve` has beyond one closed loop: open loops, searches and interference, against a server that plays
what it is told and in its own process.

usage: serve_load_test.py PROGRAM [unittest arguments]
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).parent))
from bench_serve import DETAILED_KEYS, KEYS, LIMIT_S, PROGRAM, SCRATCH, BenchServe, bench, prompts_file, run_tests
from fake_completions_server import FakeServer

HINT = r"give --scale-lengths ([0-9.]+) or less"
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

    def test_runs_of_a_search_are_no_longer_than_they_need_be(self):
        # Lines are many more than the requests of a run, and of another file fewer: those are taken in turn.
        for prompts, more, planned in [(("1 a",) * 5000, (), 1200), (("1 a", "1 b"), (), 1200), (("1 a",) * 50, ("--num-prompts", 30), 30)]:
            with self.subTest(prompts=len(prompts)), FakeServer() as server:
                out = self.result(bench(server, "--prompts-file", prompts_file(*prompts), "--find-max-rate", "--seeds", 1, "--rate-start", 2000,
                                        "--attainment", 0.01, "--precision", 1, "--goodput", "e2el:0", "--json", *more))
            self.assertEqual(max(rate["planned"] for rate in out["fastdecode"]["rates"]), planned)

    def test_lengths_of_all_runs_are_checked_before_the_first(self):
        def factor(seed):
            process = bench(server, "--workload", "azure_conv", "--num-prompts", 3, "--seed", seed, "--scale-lengths", 10)
            return float(re.search(HINT, process.stderr)[1])
        with FakeServer(vocab_size=50, max_model_len=512) as server:
            factors = [factor(seed) for seed in range(8)]
            # What this seed draws fits with its factor; the one behind it draws longer requests.
            first = next(seed for seed in range(7) if factors[seed] > 1.1 * factors[seed + 1])
            load = ("--workload", "azure_conv", "--num-prompts", 3, "--seed", first, "--scale-lengths", factors[first])
            self.refused(bench(server, *load, "--find-max-rate", "--goodput", "e2el:0", "--seeds", 2), f"give --scale-lengths {factors[first + 1]:g} ")
            self.assertEqual(server.bodies(), [])
            answers = ("--interference", "--request-rate", 1, "--random-input-len", 4)
            self.refused(bench(server, *answers), "--interference-prompt-len: a prompt of 1024 tokens and an answer of 1 ")
            self.refused(bench(server, "--warmup", 3, "--random-input-len", 600), "--random-input-len, --random-output-len: a prompt of 600 ")
            self.assertEqual(server.bodies(), [])
            self.result(bench(server, *load, "--json"))

    def test_prompts_of_standard_input_serve_all_runs(self):
        with FakeServer() as server:
            self.result(bench(server, "--prompts-file", "-", "--warmup", 2, "--request-rate", "100,200", "--json", input="1 a\n2 b\n"))
        self.assertEqual([body["prompt"] for body in server.bodies()], ["1 a", "2 b"] * 3)

    def test_without_limits_requests_have_only_to_succeed(self):
        with FakeServer() as server:
            process = bench(server, "--prompt", "1", "--num-prompts", 3, "--request-rate", "100,200")
        self.assertIn("Share of requests that succeeded, by rate", process.stdout)

    def test_interrupted_rate_is_cut_short(self):
        with FakeServer() as server:
            process = subprocess.Popen([PROGRAM, "bench", "serve", "--url", server.url, "--prompt", "1", "--num-prompts", "50", "--request-rate",
                                        "1000,1", "--goodput", "e2el:60000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
            while len(server.bodies()) < 51 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, err)
        self.assertRegex(out, r"(?m)^ *1000\.000 .* reached")
        self.assertRegex(out, r"(?m)^ *1\.000 .*[0-9]  cut short$")

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
        interference = ["--interference", "--request-rate", 2]
        for arguments, needles in [
            (["--find-max-rate"], ("--find-max-rate", "--goodput")), (["--find-max-rate", "--goodput", "ttft:3", "--request-rate", 2], ("--request-rate",)),
            (["--workload", "azure"], ("--workload", "'azure'", "azure_conv")), (["--scale-lengths", 2], ("--scale-lengths", "--workload")),
            (["--workload", "distserve", "--prompt", "a"], ("--workload", "--prompt")), (["--arrivals", "weekly"], ("--arrivals", "weekly", "gamma:SHAPE")),
            (["--arrivals", "constant"], ("--arrivals", "--request-rate")), (["--request-rate", "0"], ("--request-rate", "0")),
            (["--interference"], ("--interference", "--request-rate")), (["--chunks", 64], ("--chunks", "--interference")),
            (["-m", "a", "--url", "http://a"], ("-m", "--url")), (["-m", "a", "--no-stream"], ("--no-stream",)), (["--trace", "/nowhere"], ()),
            (["--html", "/nowhere/a.html"], ("--html", "/nowhere")), (["-m", "a", "--timeout-s", 1], ("--timeout-s: ", "leave it out with -m")),
            (["-m", "a", "--api-key-file", "b"], ("--api-key-file: ", "leave it out with -m")),
            ([*interference, "--warmup", 0], ("--warmup: ", "leave it out")), ([*interference, "--num-prompts", 9], ("--num-prompts: ", "--random-output-len")),
            (["--seeds", 2], ("--seeds: ", "--find-max-rate")), (["--precision", 0.1], ("--precision: ", "--find-max-rate")),
            (["--rate-start", 2], ("--rate-start: ", "--find-max-rate")), (["--decodes", 2], ("--decodes: ", "--interference")),
            (["--interference-prompt-len", 9], ("--interference-prompt-len: ", "give --interference")),
            ([*interference, "--max-concurrency", 9], ("--concurrency: ", "--decodes"))]:
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
        factors = []
        for scale in ([], ["--scale-lengths", 0.5], ["--scale-lengths", 2]):
            process = self.run_model("--workload", "azure_conv", "--num-prompts", 20, *scale)
            self.refused(process, "--workload: ", "context of 512")
            factors.append(float(re.search(HINT, process.stderr)[1]))
        self.assertEqual(len(set(factors)), 1, "the factor is what to give in all, whatever was given")
        load = ("--workload", "azure_conv", "--num-prompts", 20, "--concurrency", 20, "--json", "--scale-lengths")
        self.assertEqual(self.result(self.run_model(*load, factors[0]))["completed"], 20)
        self.refused(self.run_model(*load, 1.02 * factors[0]), "--scale-lengths")

    def test_options_are_named_that_make_requests_too_long(self):
        ids = prompts_file({"prompt": [4, 5, 6], "max_tokens": 5}, {"prompt": [7] * 300, "max_tokens": 400})
        self.refused(self.run_model("--prompts-file", ids), "--prompts-file: a prompt of 300 tokens and an answer of 400 (max_tokens")
        self.refused(self.run_model("--interference", "--request-rate", 1, "--random-input-len", 600),
                     "--random-input-len, --random-output-len: a prompt of 600 ")

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

    def test_chunks_that_succeed_stay_when_another_fails(self):
        # A token a step: the first of four answers is over before the last one's prompt is through.
        arguments = ("--interference", "--decodes", 4, "--random-input-len", 400, "--random-output-len", 100, "--request-rate", 200,
                     "--interference-prompt-len", 50, "--chunks", "2048,1,1024", "--json")
        for _ in range(5):  # as above
            process = self.run_model(*arguments)
            if "with 1024" not in process.stderr + process.stdout and "with 2048" not in process.stderr + process.stdout:
                break
        self.refused(process, "--chunks: with 1: --random-output-len: answers of 100 tokens")
        ours = json.loads(process.stdout)["fastdecode"]
        self.assertEqual([point["prefill_chunk"] for point in ours["interference"]], [2048, 1024])
        self.assertEqual(len(ours["notes"]), 1)
        self.assertIn("--chunks: with 1: --random-output-len", ours["notes"][0])


if __name__ == "__main__":
    run_tests()
