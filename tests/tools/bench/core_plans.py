#!/usr/bin/env python3
"""Decode with the core plan that auto chooses, beside the others, and beside another build, in turn.

usage: core_plans.py FASTDECODE MODEL --batches LIST --contexts LIST [--other PROGRAM] [--rounds N] [--repeats N] [engine options ...]

Each point is measured `repeats` times with each, one after the other, and each figure is the median of these. --other
is measured as it is without options. The machine must have nothing else to do.
"""
import argparse
import json
import statistics
import subprocess


def context_of(model):
    with open(f"{model}/config.json", encoding="utf-8") as config:
        return json.load(config)["max_position_embeddings"]


def measure(program, arguments, batch, context, plan, engine):
    # Sequences are to outlive the window, however late its end is noticed.
    room = min(context + arguments.rounds + 1100, context_of(arguments.model))
    command = [program, "bench", "step", "-m", arguments.model, "--batch", batch, "--context", context, "--rounds",
               arguments.rounds, "--max-context", room, "--json", "-q", *plan, *engine]
    run = json.loads(subprocess.run([str(each) for each in command], check=True, stdout=subprocess.PIPE).stdout)
    return batch / run["round_us"] * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--contexts", default="128,1024,4096")
    parser.add_argument("--other")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments, engine = parser.parse_known_args()
    plans = {"auto": (arguments.program, []),
             "split, K = 1": (arguments.program, ["--core-plan", "split", "--micro-batches", 1]),
             "split, K = 2": (arguments.program, ["--core-plan", "split", "--micro-batches", 2])}
    if arguments.other:
        plans["other"] = (arguments.other, [])
    print("| batch | context | " + " | ".join(plans) + " | auto / best |" + (" auto / other |" if arguments.other else ""))
    print("|---" * (len(plans) + 3 + bool(arguments.other)) + "|")
    shares, against = [], []
    for batch in map(int, arguments.batches.split(",")):
        for context in map(int, arguments.contexts.split(",")):
            rates = {name: [] for name in plans}
            for _ in range(arguments.repeats):
                for name, (program, plan) in plans.items():
                    if name != "split, K = 2" or batch > 1:
                        rates[name].append(measure(program, arguments, batch, context, plan, engine))
            medians = {name: statistics.median(values) for name, values in rates.items() if values}
            cells = [f"{medians[name]:.1f}" if name in medians else "" for name in plans]
            best = max(rate for name, rate in medians.items() if name != "other")
            shares.append(medians["auto"] / best)
            cells.append(f"{shares[-1]:.2f}")
            if arguments.other:
                pairs = [ours / other for ours, other in zip(rates["auto"], rates["other"])]
                against.append(statistics.median(pairs))
                cells.append(f"{against[-1]:.2f} [{min(pairs):.2f}, {max(pairs):.2f}]")
            print(f"| {batch} | {context} | " + " | ".join(cells) + " |", flush=True)
    close = sum(share >= 0.95 for share in shares)
    print(f"\nauto is within 5 % of the best at {close} of {len(shares)} points")
    if against:
        print(f"auto beside the other: least {min(against):.2f}, median {statistics.median(against):.2f}")


if __name__ == "__main__":
    main()
