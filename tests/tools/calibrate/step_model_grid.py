#!/usr/bin/env python3
"""How well the step model foretells rounds: calibrates, measures a grid, calibrates again, and prints a table.

usage: step_model_grid.py FASTDECODE MODEL FOLDER [--batches LIST] [--contexts LIST] [--plans LIST] [engine
options ...]

FOLDER gets the calibrations. The grid is measured with --core-plan split, once with one micro-batch and once with two,
and with --core-plan shared. A point for which the two calibrations foretell rounds more than 5 % apart is measured
again, between two new calibrations; if these still differ, it is listed apart: the machine changed meanwhile. Errors are
those of the mean of both calibrations. The machine must have nothing else to do.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

POINT = re.compile(r"^ *(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +[-+][\d.]+% +(.*)$")
DIFFERENCE_MAX = 0.05


class Grid:
    def __init__(self, arguments, engine):
        self.program, self.model, self.folder = arguments.program, arguments.model, pathlib.Path(arguments.folder)
        self.grid = ["--batches", arguments.batches, "--contexts", arguments.contexts]
        self.engine = engine
        self.calibrations = 0

    def run(self, *arguments):
        command = [self.program, "calibrate", "-m", self.model, *arguments, *self.engine, "-q"]
        return subprocess.run([str(each) for each in command], check=True, stdout=subprocess.PIPE, text=True).stdout

    def calibrate(self, plan):
        self.calibrations += 1
        file = self.folder / f"calibration-{self.calibrations}.json"
        text = self.run("--out", file, *plan)
        print(f"calibration {self.calibrations} ({' '.join(plan)}): {text.strip().splitlines()[-1]}", file=sys.stderr)
        return file

    def check(self, file, plan, grid):
        """The points of one measurement: {(batch, context): (measured us, predicted us, limit)}."""
        points = {}
        for line in self.run("--check", file, *grid, *plan).splitlines():
            if match := POINT.match(line):
                batch, context, _, measured, predicted, limit = match.groups()
                points[int(batch), int(context)] = (float(measured), float(predicted), limit)
        return points

    def measure(self, plan, several, grid):
        """Two calibrations, each followed by a measurement with each of the several options."""
        measured = []
        for _ in range(2):
            file = self.calibrate([*plan, *several[0]])
            measured.append([self.check(file, [*plan, *more], grid) for more in several])
        return measured


def rows_of(points, again, name):
    rows = []
    for point, (measured, predicted, limit) in sorted(points.items()):
        if point not in again:
            continue
        measured_again, predicted_again, _ = again[point]
        rows.append({"plan": name, "batch": point[0], "context": point[1],
                     "measured_us": statistics.mean((measured, measured_again)),
                     "measured_apart": measured_again / measured - 1,
                     "predicted_us": statistics.mean((predicted, predicted_again)),
                     "calibrations_apart": predicted_again / predicted - 1, "limit": limit})
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--batches", default="8,32,128")
    parser.add_argument("--contexts", default="128,1024,2048")
    parser.add_argument("--plans", default="split,shared")
    parser.add_argument("--json", help="also write all points to this file")
    arguments, engine = parser.parse_known_args()
    grid = Grid(arguments, engine)
    split, several = ["--core-plan", "split"], [["--micro-batches", "2"], ["--micro-batches", "1"]]
    plans = {"split": (split, several, ["split, K = 2", "split, K = 1"]),
             "shared": (["--core-plan", "shared"], [[]], ["shared"])}
    rows = []
    for plan, several, names in (plans[name] for name in arguments.plans.split(",")):
        found, again = grid.measure(plan, several, grid.grid)
        plan_rows = [row for i, name in enumerate(names) for row in rows_of(found[i], again[i], name)]
        if any(abs(row["calibrations_apart"]) > DIFFERENCE_MAX for row in plan_rows):
            found, again = grid.measure(plan, several, grid.grid)
            repeated = [row for i, name in enumerate(names) for row in rows_of(found[i], again[i], name)]
            by_point = {(row["plan"], row["batch"], row["context"]): row for row in repeated}
            plan_rows = [row if abs(row["calibrations_apart"]) <= DIFFERENCE_MAX else
                         by_point.get((row["plan"], row["batch"], row["context"]), row) for row in plan_rows]
        rows += plan_rows
    print("| plan | batch | context | measured us | predicted us | error | calibrations apart | limit |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for row in rows:
        row["error"] = row["predicted_us"] / row["measured_us"] - 1
        row["apart"] = abs(row["calibrations_apart"]) > DIFFERENCE_MAX
        if not row["apart"]:
            errors.append(abs(row["error"]))
        print(f"| {row['plan']} | {row['batch']} | {row['context']} | {row['measured_us']:.1f} | {row['predicted_us']:.1f} | "
              f"{100 * row['error']:+.1f} % | {100 * row['calibrations_apart']:+.1f} %"
              f"{' (apart)' if row['apart'] else ''} | {row['limit']} |")
    if errors:
        print(f"\n{len(errors)} of {len(rows)} points: median error {100 * statistics.median(errors):.1f} %, "
              f"worst {100 * max(errors):.1f} %")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
