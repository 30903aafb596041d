#!/usr/bin/env python3
"""Checks a file of Chrome trace events by the Trace Event Format.

usage: check_trace.py TRACE.json. Prints one line a violation and exits with 1 if there is any.
As a module: check(document).
"""
import collections
import json
import sys

KNOWN = set("XisSTFtfbneCM")
# Times are us with three decimals: what is nearer than this is equal.
TOLERANCE_US = 1e-4
MOST_LINES = 50


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Checker:
    def __init__(self):
        self.violations = []
        self.open = collections.defaultdict(list)      # (pid, tid) -> [(start, end, name)] that are not over
        self.last = {}                                 # of each track: the last time that was written
        self.flows = collections.defaultdict(list)     # (cat, id) -> [(phase, ts)]
        self.spans = collections.defaultdict(list)     # (pid, cat, id) -> [(phase, ts, name)]
        self.named = {"process_name": set(), "thread_name": set()}
        self.used = set()

    def say(self, number, text):
        self.violations.append(f"event {number}: {text}")

    def event(self, number, event):
        phase = event.get("ph")
        if phase not in KNOWN:
            return self.say(number, f"unknown phase {phase!r}")
        if not isinstance(event.get("name"), str) or not event["name"]:
            return self.say(number, "no name")
        for field in ("pid", "tid"):
            if not isinstance(event.get(field), int):
                return self.say(number, f"no {field}")
        if phase == "M":
            return self.metadata(number, event)
        if not is_number(event.get("ts")) or event["ts"] < 0:
            return self.say(number, f"ts is {event.get('ts')!r}")
        self.in_order(number, event)
        if phase == "X":
            self.slice(number, event)
        elif phase == "i":
            self.used.add((event["pid"], event["tid"]))
            if event.get("s") not in ("t", "p", "g"):
                self.say(number, f"instant of scope {event.get('s')!r}")
        elif phase in "stf":
            self.flow(number, event)
        elif phase in "be":
            self.spans[(event["pid"], event.get("cat"), event.get("id"))].append((phase, event["ts"], event["name"]))
        elif phase == "C":
            values = event.get("args", {})
            if not values or not all(is_number(value) for value in values.values()):
                self.say(number, f"counter without numbers: {values}")

    def metadata(self, number, event):
        if event["name"] in self.named:
            if not event.get("args", {}).get("name"):
                self.say(number, f"{event['name']} without a name")
            key = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
            if key in self.named[event["name"]]:
                self.say(number, f"{event['name']} twice for {key}")
            self.named[event["name"]].add(key)

    def in_order(self, number, event):
        if event["ph"] == "C":
            track = (event["pid"], "counter", event["name"])
        elif event["ph"] in "be":
            track = (event["pid"], "async", event.get("cat"), event.get("id"))
        else:
            track = (event["pid"], event["tid"])
        if event["ts"] < self.last.get(track, 0):
            self.say(number, f"{event['ts']} comes after {self.last[track]} on track {track}")
        self.last[track] = max(event["ts"], self.last.get(track, 0))

    def pop(self, track, ts):
        while self.open[track] and self.open[track][-1][1] <= ts + TOLERANCE_US:
            self.open[track].pop()

    def slice(self, number, event):
        track = (event["pid"], event["tid"])
        self.used.add(track)
        duration = event.get("dur")
        if not is_number(duration) or duration < 0:
            return self.say(number, f"dur is {duration!r}")
        start, end = event["ts"], event["ts"] + duration
        self.pop(track, start)
        if self.open[track] and end > self.open[track][-1][1] + TOLERANCE_US:
            outer = self.open[track][-1]
            self.say(number, f"{event['name']} [{start}, {end}] ends after {outer[2]} [{outer[0]}, {outer[1]}]")
        self.open[track].append((start, end, event["name"]))

    def flow(self, number, event):
        track = (event["pid"], event["tid"])
        self.flows[(event.get("cat"), event.get("id"))].append((event["ph"], event["ts"]))
        if event["ph"] == "f" and event.get("bp") != "e":
            self.say(number, "the end of a flow is not bound to the slice around it")
        # Slices are popped with a tolerance, so the moment itself is looked at with it too.
        if not any(start <= event["ts"] + TOLERANCE_US and event["ts"] < end for start, end, _ in self.open[track]):
            self.say(number, f"flow {event.get('id')} {event['ph']} at {event['ts']} lies in no slice of {track}")

    def finish(self):
        for key, points in self.flows.items():
            phases = "".join(phase for phase, _ in sorted(points, key=lambda point: (point[1], "stf".index(point[0]))))
            if phases[0] != "s" or phases[-1] != "f" or set(phases[1:-1]) - {"t"}:
                self.violations.append(f"flow {key}: its points are {phases!r}")
        for key, points in self.spans.items():
            if [phase for phase, _, _ in points] != ["b", "e"]:
                self.violations.append(f"async {key}: its events are {[phase for phase, _, _ in points]}")
            elif points[0][1] > points[1][1] or points[0][2] != points[1][2]:
                self.violations.append(f"async {key}: {points}")
        for track in self.used:
            if track not in self.named["thread_name"] or track[0] not in self.named["process_name"]:
                self.violations.append(f"track {track}: has no name")


def check(document):
    """Violations, as lines."""
    checker = Checker()
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return ["no traceEvents"]
    for number, event in enumerate(events):
        checker.event(number, event)
    checker.finish()
    return checker.violations


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    violations = check(document)
    for violation in violations[:MOST_LINES]:
        print(violation)
    print(f"{len(document['traceEvents'])} events, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
