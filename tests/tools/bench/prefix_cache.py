#!/usr/bin/env python3
"""What one prompt with many answers, and prompts that begin alike, cost with the prefix cache and without.

usage: PYTHONPATH=tools/python FASTDECODE_LIBRARY=build/release/tools/libfastdecode.so prefix_cache.py MODEL
       [--repeats N] [--only answers,system,burst,chat] [engine options as name=value ...]

Prints Markdown. The model's context must hold 4,096 tokens; `fastdecode synth` makes one. Times are from the submission to
an event, by the engine's clock. The machine must have nothing else to do.
"""
import argparse
import random
import statistics
import threading

import fastdecode

VOCABULARY = 1000  # ids below it are ordinary tokens in every model here


def ids(count, seed):
    draw = random.Random(seed)
    return [draw.randrange(10, VOCABULARY) for _ in range(count)]


def run(engine, prompt, max_tokens, **options):
    """Its answer's tokens, the time of the first one and of all in ms, and how much of the prompt was found."""
    params = fastdecode.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    tokens, first = [], None
    for event in engine.submit(prompt, params, **options):
        tokens += event.tokens
        if event.tokens and first is None:
            first = (event.time_ns - event.submit_time_ns) * 1e-6
        last = event
    return tokens, first, (last.time_ns - last.submit_time_ns) * 1e-6, last.cached_tokens


def answers(make, repeats):
    print("| 8 answers of 64 tokens to a prompt of 1,024 | first token, ms | all, ms | prompt rows |")
    print("|---|---|---|---|")
    for count, requests in ((8, 1), (1, 8)):
        firsts, alls = [], []
        with make(prefix_cache="off") as engine:
            for repeat in range(repeats):
                prompt = ids(1024, repeat)
                params = fastdecode.SamplingParams(temperature=1, seed=1, max_tokens=64, ignore_eos=True, n=count)
                running = [engine.submit(prompt, params) for _ in range(requests)]
                first, last = None, 0
                for request in running:
                    for event in request:
                        at = (event.time_ns - event.submit_time_ns) * 1e-6
                        first = at if event.tokens and first is None else first
                        last = max(last, at)
                firsts.append(first)
                alls.append(last)
        kind = "one request with n = 8" if requests == 1 else "eight requests"
        print(f"| {kind} | {statistics.median(firsts):.0f} | {statistics.median(alls):.0f} | {1024 * requests} |", flush=True)


def system(make, repeats):
    print("\n| a system prompt of 1,536 tokens and 64 of a user's, one at a time | TTFT, ms (median, least, most) | found |")
    print("|---|---|---|")
    medians = []
    for kind, option in (("miss: --prefix-cache off", "off"), ("hit", "on")):
        with make(prefix_cache=option) as engine:
            common = ids(1536, 1)
            run(engine, common + ids(64, 2), 4)
            firsts = [run(engine, common + ids(64, 100 + i), 4) for i in range(3 * repeats)]
        times = [first for _, first, _, _ in firsts]
        medians.append(statistics.median(times))
        print(f"| {kind} | {medians[-1]:.1f} ({min(times):.1f}, {max(times):.1f}) | {firsts[-1][3]} of 1600 |", flush=True)
    print(f"\nhit / miss: {medians[1] / medians[0]:.3f}")


def burst(make, repeats):
    print("\n| 64 such prompts at once, the system prompt known | TTFT, ms: median, last | tokens found |")
    print("|---|---|---|")
    for kind, option in (("--prefix-cache off", "off"), ("on", "on")):
        with make(prefix_cache=option) as engine:
            common = ids(1536, 1)
            run(engine, common + ids(64, 2), 4)
            results = []
            threads = [threading.Thread(target=lambda i=i: results.append(run(engine, common + ids(64, 300 + i), 4)))
                       for i in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        times = sorted(first for _, first, _, _ in results)
        print(f"| {kind} | {statistics.median(times):.0f}, {times[-1]:.0f} | {sum(found for *_, found in results)} |", flush=True)


def chat(make, repeats):
    print("\n| a chat of 8 turns: 256 tokens of a system prompt, 64 of each user's turn, 128 of each answer | value |")
    print("|---|---|")
    outputs = []
    for option in ("off", "on"):
        with make(prefix_cache=option) as engine:
            prompt, asked, found, times, all_tokens = ids(256, 1), 0, 0, [], []
            for turn in range(8):
                prompt = prompt + ids(64, 10 + turn)
                tokens, first, _, cached = run(engine, prompt, 128)
                asked, found = asked + len(prompt), found + cached
                times.append(first)
                all_tokens += tokens
                prompt = prompt + tokens
        outputs.append(all_tokens)
        print(f"| {option}: prompt tokens found, of {asked} | {found} ({100 * found / asked:.1f} %) |")
        print(f"| {option}: TTFT of the turns, ms | {', '.join(f'{time:.0f}' for time in times)} |", flush=True)
    print(f"| same tokens | {outputs[0] == outputs[1]} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="answers,system,burst,chat")
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    options = dict(option.split("=", 1) for option in arguments.options)

    def make(**more):
        return fastdecode.Engine(arguments.model, log=None, **{"max_context": "4096", **options, **more})

    for name in arguments.only.split(","):
        {"answers": answers, "system": system, "burst": burst, "chat": chat}[name](make, arguments.repeats)


if __name__ == "__main__":
    main()
