#!/usr/bin/env python3
"""How well the step model composes a round: its law, given what the S-Part and the home took in the same run.

usage: composition.py FASTDECODE MODEL [--batch N] [--points CONTEXT:K,...] [engine options ...]

The points are those of docs/PERFORMANCE.md's overlap table: S-bound, balanced and R-bound, with one core for each side.
The machine must have nothing else to do.
"""
import argparse
import json
import subprocess


def compose(run):
    """A round in us by the law of engine/schedule/step_model.h, where all micro-batches have as much."""
    micro_batches = run["micro_batches"]
    layers = round(run["layer_stages"] / run["steps"]) + 1
    stage_us = run["layer_stage_ns"] / run["layer_stages"] / 1e3
    home_us = run["r_busy_ns"] / run["hops"] / 1e3
    # With several micro-batches replies lie unseen while the S-Part works for another one. A hop to a home of this host
    # takes some microseconds, which layers of milliseconds do not show.
    hop_us = run["hop_overhead_ns"] / run["hops"] / 1e3 if micro_batches == 1 else 0
    head_us = max(0.0, run["s_busy_ns"] / run["steps"] / 1e3 - layers * stage_us)
    path_us = stage_us + hop_us + home_us
    stages_us = micro_batches * stage_us
    layer_us = max(stages_us, micro_batches * home_us, path_us)
    # What the S-Part does between steps hides behind the homes of other micro-batches.
    slack_us = (layer_us - stages_us) * (micro_batches - 1) / micro_batches
    return max(layers * layer_us + micro_batches * max(0.0, head_us - slack_us),
               layers * stages_us + micro_batches * head_us, layers * path_us + head_us)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--points", default="2048:2,2048:1,4096:2,4096:1,8192:2")
    arguments, engine = parser.parse_known_args()
    print("| context | K | S/R | S busy | R busy | overlap | tokens/s | by the law | error |")
    print("|---|---|---|---|---|---|---|---|---|")
    for point in arguments.points.split(","):
        context, micro_batches = point.split(":")
        command = [arguments.program, "bench", "step", "-m", arguments.model, "--batch", arguments.batch, "--context", context,
                   "--max-context", int(context) + 64, "--micro-batches", micro_batches, "--rounds", arguments.rounds,
                   "--s-cores", 0, "--r-cores", 1, "--poll", "spin", "--core-plan", "split", "--json", "-q", *engine]
        run = json.loads(subprocess.run([str(each) for each in command], check=True, stdout=subprocess.PIPE).stdout)
        model = run["step_model"]
        round_us = model["rounds_ns"] / model["rounds"] / 1e3
        law_us = compose(run)
        print(f"| {context} | {micro_batches} | {run['s_over_r']:.2f} | {run['s_busy']:.3f} | {run['r_busy']:.3f} | "
              f"{run['overlap']:.3f} | {arguments.batch / round_us * 1e6:.1f} | {arguments.batch / law_us * 1e6:.1f} | "
              f"{100 * (round_us / law_us - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
