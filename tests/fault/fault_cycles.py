#!/usr/bin/env python3
"""Cycles of faults against an engine with three workers and 64 requests: workers are killed, stopped and refused, links
are cut, corrupted and delayed, at moments that a cycle's seed decides. Every request must end as it does without
faults, to the bit, and nothing may be left behind: pages, descriptors, threads.

usage: fault_cycles.py PROGRAM ROOT --seeds FIRST..LAST [--kv-type bf16|int8] [--report FILE [--resume]]
                       [--commit TEXT] [--every-kind] [--plain]
       fault_cycles.py --sum FILE
PYTHONPATH has tools/python, FASTDECODE_LIBRARY the library.
"""
import argparse
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from block import Block, Hung
from fault_plan import CYCLES_A_BLOCK
from plain_mode import PlainComparison
from report import Report, summary

# Wide enough for sums in another order to be other numbers; the demo model's are not.
PLAIN_MODEL = ("--shape", "tinyllama-1.1b", "--layers", "1")


def parse_range(text):
    first, _, last = text.partition("..")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or seeds[0] < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no range such as 0..99, and no number")
    return seeds


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", help="the built fastdecode")
    parser.add_argument("root", nargs="?", type=pathlib.Path, help="of the repository")
    parser.add_argument("--seeds", type=parse_range, help="FIRST..LAST")
    parser.add_argument("--kv-type", choices=("bf16", "int8"), default="bf16")
    parser.add_argument("--plain", action="store_true", help="without batch-invariant, in bf16, with a wider model of "
                        "random weights: tokens may differ where the two best logits are as close as bf16's error")
    parser.add_argument("--report", type=pathlib.Path, help="a line of JSON for each cycle is appended to this file")
    parser.add_argument("--resume", action="store_true", help="leave out what the report has")
    parser.add_argument("--commit", default="", help="what is tested, for the report")
    parser.add_argument("--every-kind", action="store_true", help="go on behind LAST until each kind of "
                        "fault has struck, and fail if as many cycles again do not suffice")
    parser.add_argument("--sum", type=pathlib.Path, help="print the sums of a report, and do nothing else")
    given = parser.parse_args()
    if given.sum is None and (given.root is None or given.seeds is None):
        parser.error("PROGRAM, ROOT and --seeds are needed, or --sum FILE")
    if given.resume and given.report is None:
        parser.error("--resume goes on with the file of --report")
    return given


class Settings:
    """What all blocks of a run have in common."""

    def __init__(self, given, folder):
        self.program, self.plain, self.kv_type = given.program, given.plain, given.kv_type
        self.other_model = given.root / "tests/golden/transformers/mqa"
        if given.plain:
            self.model = pathlib.Path(folder) / "model"
            subprocess.run([self.program, "synth", *PLAIN_MODEL, "--out", str(self.model)], check=True)
            self.compare = PlainComparison(self)
        else:
            self.model = given.root / "tools/demo_model/model"
            self.compare = Block.compare_exactly  # what a cycle's answers add to its line and to its failures


def seeds_of(given, report):
    """The seeds that are to be run, one after the other."""
    yield from (seed for seed in given.seeds if not report.has(seed))
    more = iter(range(given.seeds.stop, given.seeds.stop + len(given.seeds)))
    while given.every_kind and report.missing_kinds() and (seed := next(more, None)) is not None:
        yield seed


async def run(given, report):
    with tempfile.TemporaryDirectory(prefix="fd-fault-") as folder:
        settings = Settings(given, folder)
        block = None
        try:
            for seed in seeds_of(given, report):
                number = seed // CYCLES_A_BLOCK
                if block is None or block.plan.number != number:
                    if block is not None:
                        block.end()
                    block = Block(settings, number, folder)
                    await block.start()
                try:
                    line = await block.run_cycle(seed)
                except Hung as hung:
                    report.add_hung(seed, str(hung))
                    os._exit(1)  # its threads may not end, its workers die with it
                report.add(line)
                if line["failures"]:  # what is left of them must not be the next cycle's
                    block.end()
                    block = None
        finally:
            if block is not None:
                block.end()


def main():
    given = parse_arguments()
    if given.sum is not None:
        print(summary([json.loads(line) for line in given.sum.read_text().splitlines()]))
        return 0
    report = Report(given)
    asyncio.run(run(given, report))
    print(summary(report.lines))
    missing = report.missing_kinds() if given.every_kind else set()
    if missing:
        print(f"these kinds of faults have not struck: {', '.join(sorted(missing))}")
    return 1 if missing or any(line["failures"] for line in report.lines) else 0


if __name__ == "__main__":
    sys.exit(main())
