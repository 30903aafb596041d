"""What tests of `fastdecode bench serve` share. Their usage: FILE PROGRAM [unittest arguments]"""
import atexit
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", "120"))
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="bench_serve_"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())

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


def run_tests():
    unittest.main(module="__main__", argv=[sys.argv[0]] + sys.argv[2:])
