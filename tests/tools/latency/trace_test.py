#!/usr/bin/env python3
"""Traces of simulated recordings: by the rules of the format, and against the recording itself.

usage: trace_test.py WRITE_EXPORT
"""
import collections
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_trace

PROGRAM = ""
SECONDS = "0.3"
COMPOSE, STAGE, PART, POST, HOP, FINISH, TOKEN = 1, 4, 5, 6, 7, 8, 12
Event = collections.namedtuple(
    "Event", "home kind start end step layer batch id count prepare append attend merge wait home_end")


def export(*arguments):
    return json.loads(subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=60, check=True).stdout)


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document = export("trace", SECONDS)
        cls.recorded = [Event(*fields) for fields in export("events", SECONDS)]
        cls.events = cls.document["traceEvents"]
        composed = {(event.batch, event.step): event for event in cls.recorded if event.kind == COMPOSE}
        finished = {(event.batch, event.step): event for event in cls.recorded if event.kind == FINISH}
        # The first step of a micro-batch may lack what was before its composing.
        cls.whole = {key for key in composed if key in finished}
        pipeline = [e for e in cls.events if e["ph"] == "X" and cls.thread(e) == "pipeline thread"]
        # The moment that the trace's times count from: its composing of some step is the recording's.
        first = min(composed.values(), key=lambda event: event.start)
        slices = [e for e in pipeline if e["name"] == "compose"]
        cls.origin = first.start - cls.ns(min(e["ts"] for e in slices))

    @staticmethod
    def ns(us):
        return round(us * 1000)

    @classmethod
    def thread(cls, event):
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in cls.events if e["name"] == "thread_name"} \
            if not hasattr(cls, "threads") else cls.threads
        cls.threads = names
        return names.get((event["pid"], event["tid"]))

    def of(self, kind):
        return [event for event in self.recorded if event.kind == kind and (event.batch, event.step) in self.whole]

    def slices(self, thread, prefix=""):
        return [e for e in self.events if e["ph"] == "X" and self.thread(e) == thread and e["name"].startswith(prefix)]

    def span(self, event):
        return self.origin + self.ns(event["ts"]), self.origin + self.ns(event["ts"]) + self.ns(event["dur"])

    def test_it_follows_the_format(self):
        self.assertEqual(check_trace.check(self.document), [])
        self.assertGreater(len(self.events), 10000)

    def test_nothing_recorded_is_a_trace_too(self):
        self.assertEqual(check_trace.check(export("trace-empty")), [])

    def test_processes_are_the_engine_and_each_home(self):
        names = [e["args"]["name"] for e in self.events if e["name"] == "process_name"]
        self.assertEqual(names, ["engine"] + [f"home {h} (10.0.0.{h + 1}:7000, home 0)" for h in range(3)])
        self.assertEqual(sorted(self.threads.values()),
                         ["leader"] * 3 + ["micro-batch 0", "micro-batch 1", "pipeline thread"])

    def test_the_pipeline_thread_shows_what_was_recorded(self):
        for kind, name in ((COMPOSE, "compose"), (STAGE, "stage "), (POST, "post "), (FINISH, "finish")):
            expected = sorted((event.start, event.end) for event in self.recorded if event.kind == kind)
            self.assertEqual(sorted(map(self.span, self.slices("pipeline thread", name))), expected, name)

    def test_micro_batches_show_steps_stages_and_parts(self):
        for batch in range(2):
            thread = f"micro-batch {batch}"
            steps = self.slices(thread, "step ")
            ends = {event.end for event in self.of(FINISH) if event.batch == batch}
            self.assertGreater(len(steps), 20)
            self.assertLessEqual({self.span(step)[1] for step in steps}, ends)
            self.assertLessEqual(len(ends) - len(steps), 1)
            shown = {int(step["name"].split()[1]) for step in steps}
            for kind, prefix in ((STAGE, "stage "), (PART, ("GEMM", "rest"))):
                expected = sorted((event.start, event.end) for event in self.of(kind)
                                  if event.batch == batch and event.step in shown)
                self.assertEqual(sorted(map(self.span, self.slices(thread, prefix))), expected)

    def pairs(self):
        pairs = collections.defaultdict(dict)
        for e in self.events:
            if e["ph"] in "be":
                pairs[e["id"]][e["ph"]] = e
        return pairs

    def test_every_hop_is_a_pair_from_posted_to_seen(self):
        shown = {(int(e["name"].split()[1]), batch) for batch in range(2)
                 for e in self.slices(f"micro-batch {batch}", "step ")}
        expected = sorted((event.start, event.end, f"hop to home {event.home}") for event in self.recorded
                          if event.kind == HOP and (event.step, event.batch) in shown)
        found = sorted((*(self.origin + self.ns(pair[phase]["ts"]) for phase in "be"), pair["b"]["name"])
                       for pair in self.pairs().values())
        self.assertEqual(found, expected)

    def home_slices(self, home):
        return [e for e in self.events if e["ph"] == "X" and e["pid"] == 100 + home]

    def hops(self):
        return {(event.home, event.batch, event.step, event.layer): event
                for event in self.recorded if event.kind == HOP}

    def test_homes_show_their_work_taken_apart(self):
        hops = self.hops()
        checked = 0
        for home in range(3):
            slices = self.home_slices(home)
            for e in slices:
                if not e["name"].startswith("hop"):
                    continue
                layer = int(e["name"].split()[-1])
                hop = hops[(home, e["args"]["micro_batch"], e["args"]["step"], layer)]
                start, end = self.span(e)
                work = hop.prepare + hop.append + hop.attend + hop.merge + hop.wait
                self.assertEqual(e["args"]["work_ns"], work)
                self.assertLessEqual(abs(end - start - work), 0.001 * work + 2)
                self.assertLessEqual(hop.start, start)
                self.assertLessEqual(end, hop.end)
                inside = {part["name"]: self.ns(part["dur"]) for part in slices
                          if e["ts"] <= part["ts"] and part["ts"] + part["dur"] <= e["ts"] + e["dur"] + 1e-4}
                for name, ns in (("append", hop.append), ("attend", hop.attend), ("merge", hop.merge)):
                    if ns > 0:
                        self.assertLessEqual(abs(inside[f"home {name}"] - ns), 0.001 * ns + 2)
                checked += 1
        self.assertGreater(checked, 300)

    def test_homes_lie_where_their_clocks_put_them(self):
        """A home's clock goes evenly, so its times less the trace's lie on a line, as far as arguments promise."""
        hops = self.hops()
        promised = []
        for home in range(3):
            points, within = [], 0
            for e in self.home_slices(home):
                if e["name"].startswith("hop"):
                    key = (home, e["args"]["micro_batch"], e["args"]["step"], int(e["name"].split()[-1]))
                    end = self.span(e)[1]
                    points.append((end, (hops[key].home_end - end + 2 ** 31) % 2 ** 32 - 2 ** 31))
                    within = e["args"]["placed_within_us"] * 1000
            # Least squares, about the middle.
            middle_x = sum(x for x, _ in points) / len(points)
            middle_y = sum(y for _, y in points) / len(points)
            slope = (sum((x - middle_x) * (y - middle_y) for x, y in points) /
                     sum((x - middle_x) ** 2 for x, _ in points))
            worst = max(abs(y - middle_y - slope * (x - middle_x)) for x, y in points)
            self.assertLess(worst, 2 * within)
            promised.append(within)
        self.assertLess(min(promised), 20e3)

    def test_arrows_go_from_posting_to_the_home_and_back(self):
        flows = collections.defaultdict(list)
        for e in self.events:
            if e["ph"] in "stf":
                flows[e["id"]].append((e["ph"], self.thread(e)))
        self.assertEqual(len(flows), len(self.pairs()))
        for points in flows.values():
            self.assertEqual(sorted(points)[1:], [("s", "pipeline thread"), ("t", "leader")])
            self.assertTrue(sorted(points)[0][1].startswith("micro-batch"))

    def test_tokens_are_instants(self):
        found = collections.Counter((e["args"]["request"], e["args"]["index"], self.origin + self.ns(e["ts"]))
                                    for e in self.events if e["ph"] == "i")
        recorded = collections.Counter((event.id, event.count, event.end)
                                       for event in self.recorded if event.kind == TOKEN)
        self.assertEqual(found - recorded, collections.Counter())
        self.assertGreater(sum(found.values()), 0.9 * sum(recorded.values()))

    def test_rows_in_flight_end_at_none(self):
        counts = [e["args"]["value"] for e in self.events if e["ph"] == "C"]
        self.assertGreater(len(counts), 50)
        self.assertGreater(max(counts), 1)
        self.assertEqual((min(counts), counts[-1]), (0, 0))


class Checker(unittest.TestCase):
    """The checker finds what is wrong."""

    def setUp(self):
        def x(ts, dur, name, tid=1): return {"ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "name": name}
        def at(ph, ts, **more): return {"ph": ph, "pid": 1, "tid": 1, "ts": ts, "name": "n", "cat": "c", "id": 7} | more
        self.events = [
            {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "p"}},
            {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "t"}},
            x(0, 10, "outer"), x(1, 3, "inner"), at("s", 2), x(5, 5, "inner"), at("f", 6, bp="e"), x(10, 1, "next"),
            at("b", 3), at("e", 4), {"ph": "i", "pid": 1, "tid": 1, "ts": 11, "name": "i", "s": "t"},
            {"ph": "C", "pid": 1, "tid": 1, "ts": 1, "name": "rows", "args": {"value": 3}}]

    def broken(self, change):
        events = copy.deepcopy(self.events)
        change(events)
        return check_trace.check({"traceEvents": events})

    def test_it_accepts_what_is_right(self):
        self.assertEqual(check_trace.check({"traceEvents": self.events}), [])

    def test_it_finds_what_is_wrong(self):
        def overlap(events): events[5]["dur"] = 6
        def negative(events): events[3]["dur"] = -1
        def backwards(events): events[7]["ts"] = 4
        def no_start(events): del events[4]
        def no_end(events): del events[6]
        def outside(events): events[4]["ts"], events[3]["dur"] = 11, 1
        def unbound(events): del events[6]["bp"]
        def half_pair(events): del events[9]
        def ends_first(events): events[9]["ts"] = 2
        def nameless(events): del events[1]
        def text_counter(events): events[11]["args"]["value"] = "3"
        def unknown(events): events[2]["ph"] = "Q"
        for change in (overlap, negative, backwards, no_start, no_end, outside, unbound, half_pair, ends_first,
                       nameless, text_counter, unknown):
            self.assertNotEqual(self.broken(change), [], change.__name__)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
