#!/usr/bin/env python3
"""What the server costs: requests over HTTP and the same through the C interface, in turn, on one machine.

usage: serve_speed.py PROGRAM INTERFACE_LOAD MODEL [--concurrency 64] [--requests N] [--prompt-tokens 100] [--tokens 64] [--pairs 5]
                      [--ttft] [-- ENGINE FLAGS...]
Prints tokens/s of each pair, the median of their ratios, and the server's CPU time a token. --ttft asks one request at a time of an
idle engine instead, and prints the median time to the first token of both.
"""
import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import urllib.request


class Server:
    def __init__(self, program, model, flags):
        self.process = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "--access-log", "none", *flags], stderr=subprocess.PIPE,
                                        text=True)
        for line in self.process.stderr:
            found = re.search(r"ready on (http://\S+)", line)
            if found:
                self.url = found.group(1)
                return
        sys.exit("the server did not start")

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as page:
            return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page.read().decode(), re.M).group(1))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        self.process.wait()


def over_http(args, requests):
    server = Server(args.program, args.model, args.flags)
    try:
        def load(count):
            return json.loads(subprocess.run(
                [args.program, "bench", "serve", "--url", server.url, "--concurrency", str(args.concurrency), "--num-prompts", str(count),
                 "--random-input-len", str(args.prompt_tokens), "--random-output-len", str(args.tokens), "--ignore-eos", "--temperature", "0",
                 "--vocab", f"0-{args.vocab - 1}", "--json"], check=True, capture_output=True, text=True).stdout)
        load(min(args.concurrency, 8))
        cpu = server.metric("fastdecode_front_cpu_seconds_total")
        result = load(requests)
        cpu = server.metric("fastdecode_front_cpu_seconds_total") - cpu
        if result["completed"] != requests:
            sys.exit(f"{result['failed']} requests failed")
        return result, cpu / result["total_output_tokens"]
    finally:
        server.stop()


def interface(args, requests):
    options = [flag.removeprefix("--") for flag in args.flags]
    pairs = [f"{name}={value}" for name, value in zip(options[::2], options[1::2])]
    return json.loads(subprocess.run([args.interface_load, args.model, str(args.concurrency), str(requests), str(args.prompt_tokens),
                                      str(args.tokens), *pairs], check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("interface_load")
    parser.add_argument("model")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ttft", action="store_true")
    argv = sys.argv[1:]
    split = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:split])
    args.flags = argv[split + 1:]
    with open(f"{args.model}/config.json") as config:
        args.vocab = json.load(config)["vocab_size"]
    if args.ttft:
        args.concurrency, args.tokens = 1, 1
    requests = args.requests or (200 if args.ttft else 2 * args.concurrency)
    ratios, costs = [], []
    for _ in range(args.pairs):
        http, cpu = over_http(args, requests)
        direct = interface(args, requests)
        costs.append(cpu * 1e6)
        if args.ttft:
            added = http["median_ttft_ms"] - direct["median_ttft_ms"]
            print(f"http {http['median_ttft_ms']:.3f} ms, interface {direct['median_ttft_ms']:.3f} ms", flush=True)
            ratios.append(added)
        else:
            ratios.append(http["output_throughput"] / direct["output_throughput"])
            print(f"http {http['output_throughput']:.1f} tokens/s, interface {direct['output_throughput']:.1f}, ratio {ratios[-1]:.4f}, "
                  f"server {costs[-1]:.1f} us of CPU a token", flush=True)
    what = "added to the first token, ms" if args.ttft else "ratio"
    print(f"{what}: median {statistics.median(ratios):.4f} [{min(ratios):.4f}..{max(ratios):.4f}], server "
          f"{statistics.median(costs):.1f} us of CPU a token")


if __name__ == "__main__":
    main()
