#!/usr/bin/env python3
"""Reads pages of GET /metrics with programs that are not ours: Prometheus' parser for Python, and its linter promtool.

usage: metrics_test.py WRITE_METRICS. Exits with 77 where the parser is not installed.
"""
import collections
import math
import os
import random
import re
import shutil
import subprocess
import sys
import unittest

DEBIAN_PYTHON = "/usr/bin/python3"
try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    # Debian's package is for Debian's Python, which need not be the one that was found first.
    if os.path.exists(DEBIAN_PYTHON) and not os.path.samefile(sys.executable, DEBIAN_PYTHON):
        os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    print(f"skipped: {error}; tools/setup --tests installs python3-prometheus-client")
    sys.exit(77)

PROGRAM = ""
MODEL = 'a "model"\\with äwkward, {name}='
VERSION = "1.2.3"
HOMES = ["local/0", 'host"b\\:7471/1, {x}=']
FINISHES = ["stop", "length", "abort", "error"]
PLACES = ["s_part", "wait", "home", "wire", "boundary", "sampling"]

# What vLLM's dashboards and autoscalers ask for, each with its labels beside model_name.
VLLM_COUNTERS = {
    "num_preemptions": [{}], "prompt_tokens": [{}], "generation_tokens": [{}], "prefix_cache_queries": [{}],
    "prefix_cache_hits": [{}],
    "request_success": [{"finished_reason": finish} for finish in FINISHES],
    "admission_rejections": [{"reason": "max_num_queued_reqs"}, {"reason": "max_num_queued_tokens"}],
}
VLLM_GAUGES = {
    "num_requests_running": [{}], "num_requests_waiting": [{}], "kv_cache_usage_perc": [{}],
    "num_requests_waiting_by_reason": [{"reason": "capacity"}, {"reason": "deferred"}],
}
VLLM_HISTOGRAMS = [
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
    "iteration_tokens_total",
]


def write_pages(calls, model=MODEL):
    """The pages that the calls ask for."""
    done = subprocess.run([PROGRAM, model, VERSION], input="\n".join(calls) + "\n", capture_output=True, text=True,
                          encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\f")[:-1]


class Page:
    def __init__(self, text):
        self.text = text
        self.families = {}
        self.samples = {}
        self.doubled = []
        for family in text_string_to_metric_families(text):
            if family.name in self.families:
                self.doubled.append(family.name)
            self.families[family.name] = family
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                if key in self.samples:
                    self.doubled.append(key)
                self.samples[key] = sample.value

    def value(self, name, **labels):
        if name.startswith("vllm:"):
            labels["model_name"] = MODEL
        return self.samples[(name, frozenset(labels.items()))]

    def buckets(self, name):
        """[(bound, count)] of a vLLM histogram, ascending."""
        found = []
        for (sample, labels), value in self.samples.items():
            if sample == name + "_bucket":
                labels = dict(labels)
                assert labels.pop("model_name") == MODEL and list(labels) == ["le"], labels
                found.append((float(labels["le"]), value))
        return sorted(found)


class Load:
    """Things that happen at random, and what they add up to."""

    def __init__(self, seed):
        random_ = random.Random(seed)
        self.calls = []
        self.observed = collections.defaultdict(list)  # histogram -> values
        self.finished = collections.Counter()
        self.responses = collections.Counter()
        self.route_seconds = collections.Counter()
        self.place_ns = collections.Counter()
        self.steps = collections.Counter()
        self.queue_ns = 0
        for _ in range(300):
            self.add(random_)

    def add(self, random_):
        def seconds():
            return round(10 ** random_.uniform(-4.5, 3.9), 6)

        first_token, gap, repeats = seconds(), seconds(), random_.randint(1, 40)
        self.calls += [f"first_token {first_token}", f"tokens {repeats} {gap}"]
        self.observed["time_to_first_token_seconds"].append(first_token)
        self.observed["inter_token_latency_seconds"] += [gap] * repeats

        finish, choices = random_.randrange(4), random_.choice([1, 1, 2, 5, 128])
        prompt, longest = random_.randint(1, 200_000), random_.randint(0, 5000)
        generated = longest if choices == 1 else longest + random_.randint(0, 5000)
        max_tokens = random_.choice([0, 16, 4096])
        queue, prefill, decode, per_token = (random_.choice([-1, seconds()]) for _ in range(4))
        total = seconds()
        self.calls.append(f"outcome {finish} {prompt} {generated} {longest} {max_tokens} {choices} {queue} {prefill} "
                          f"{decode} {total} {per_token}")
        self.finished[FINISHES[finish]] += 1
        for name, value in [("request_queue_time_seconds", queue), ("request_prefill_time_seconds", prefill),
                            ("request_decode_time_seconds", decode), ("e2e_request_latency_seconds", total),
                            ("request_time_per_output_token_seconds", per_token),
                            ("request_inference_time_seconds", -1 if prefill < 0 else prefill + max(decode, 0)),
                            ("request_params_max_tokens", max_tokens or -1), ("request_prompt_tokens", prompt),
                            ("request_generation_tokens", generated), ("request_params_n", choices),
                            ("request_max_num_generation_tokens", longest)]:
            if value >= 0:
                self.observed[name].append(value)

        queue_ns = random_.randrange(10 ** 10)
        self.queue_ns += queue_ns
        call = f"times {queue_ns}"
        for phase in ("prefill", "decode"):
            steps, parts = random_.randrange(100), [random_.randrange(10 ** 9) for _ in PLACES]
            self.steps[phase] += steps
            self.place_ns.update({(phase, place): part for place, part in zip(PLACES, parts)})
            call += f" {steps} {sum(parts)} " + " ".join(map(str, parts))
        self.calls.append(call)

        route, status, took = random_.choice(["/v1/completions", "/health"]), random_.choice([200, 400, 503]), seconds()
        self.calls.append(f"response {route} {status} {took}")
        self.responses[(route, str(status))] += 1
        self.route_seconds[route] += took


STATS = {"requests_waiting": 2, "requests_running": 5, "choices_waiting": 3, "choices_running": 7, "prompt_tokens": 10 ** 15 + 1,
         "generated_tokens": 777, "prefix_tokens": 5000, "cached_tokens": 1200, "kv_pages_cached": 20,
         "preemptions": 5, "recoveries": 3, "recovered": 2, "steps": 1000, "rows": 33_000, "s_busy_ns": 1_500_000_000, "kv_pages": 400, "kv_pages_used": 100,
         "now_ns": 90_000_000_000, "created_ns": 30_000_000_000, "last_step_ns": 89_750_000_000}
HOME_FIGURES = [(1, 500, 2_500_000_000, 88_000_000_000, 2, 300, 100, 1150, 20), (0, 0, 0, 0, 1, 0, 0, 50, 0)]
ENGINE_CALLS = [f"stat {name} {value}" for name, value in STATS.items()]
HOME_CALLS = ["home " + " ".join(map(str, figures)) + " " + name for figures, name in zip(HOME_FIGURES, HOMES)]
RECOVERIES = [(0.5, 0.002, 0.2), (7, 6, 10)]
ENGINE_CALLS += [f"recovery {total} {queue} {detection}" for total, queue, detection in RECOVERIES]
SERVER_CALLS = ["server 12 4 6 9000 21 22 23 1 4.25", "slow_client", "client_gone", "client_gone"]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.load = Load(1)
        calls = HOME_CALLS + ["page"] + ENGINE_CALLS + SERVER_CALLS + cls.load.calls + ["page"] + cls.load.calls + ["page"]
        cls.empty, cls.full, cls.fuller = map(Page, write_pages(calls))

    def test_every_family_has_help_and_type(self):
        for page in (self.empty, self.full):
            self.assertEqual(page.doubled, [])
            for name, family in page.families.items():
                self.assertRegex(name, r"^(vllm:|fastdecode_)[a-z0-9_]+$")
                self.assertTrue(family.documentation.endswith("."), name)
                self.assertIn(family.type, ("counter", "gauge", "histogram", "summary"), name)
            self.assertTrue(page.text.endswith("\n"))
            self.assertEqual(len(re.findall("^# TYPE", page.text, flags=re.M)), len(page.families))

    def test_vllms_series_are_there_from_the_start(self):
        for name, label_sets in VLLM_COUNTERS.items():
            self.assertEqual(self.empty.families["vllm:" + name].type, "counter")
            for labels in label_sets:
                self.assertEqual(self.empty.value(f"vllm:{name}_total", **labels), 0)
        for name, label_sets in VLLM_GAUGES.items():
            self.assertEqual(self.empty.families["vllm:" + name].type, "gauge")
            for labels in label_sets:
                self.assertEqual(self.empty.value("vllm:" + name, **labels), 0)
        for name in VLLM_HISTOGRAMS:
            self.assertEqual(self.empty.families["vllm:" + name].type, "histogram")
            self.assertEqual(self.empty.value(f"vllm:{name}_count"), 0)
            self.assertEqual(self.empty.buckets("vllm:" + name)[-1], (math.inf, 0))

    def test_nothing_vanishes(self):
        """vLLM #8178. What appears later is responses alone."""
        for before, after in ((self.empty, self.full), (self.full, self.fuller)):
            self.assertEqual(before.samples.keys() - after.samples.keys(), set())
        for name, _ in self.full.samples.keys() - self.empty.samples.keys():
            self.assertTrue(name.startswith("fastdecode_http_"), name)

    def test_counters_never_fall(self):
        for page, later in ((self.empty, self.full), (self.full, self.fuller)):
            for name, family in page.families.items():
                if family.type == "gauge":
                    continue
                for sample in family.samples:
                    key = (sample.name, frozenset(sample.labels.items()))
                    self.assertLessEqual(page.samples[key], later.samples[key], key)

    def test_histograms_hold_what_was_observed(self):
        for page, times in ((self.full, 1), (self.fuller, 2)):
            for name in VLLM_HISTOGRAMS:
                if name == "iteration_tokens_total":
                    continue
                values = self.load.observed[name]
                self.assertGreater(len(values), 50, name)
                buckets = page.buckets("vllm:" + name)
                counts = [count for _, count in buckets]
                self.assertEqual(counts, sorted(counts), name)
                for bound, count in buckets:
                    self.assertEqual(count, times * sum(value <= bound for value in values), (name, bound))
                self.assertEqual(page.value(f"vllm:{name}_count"), times * len(values), name)
                self.assertAlmostEqual(page.value(f"vllm:{name}_sum") / (times * math.fsum(values)), 1, places=9, msg=name)

    def test_buckets_are_of_use(self):
        gaps = [bound for bound, _ in self.full.buckets("vllm:inter_token_latency_seconds")]
        self.assertLessEqual(gaps[0], 0.0005)  # vLLM's begin at 10 ms
        for bound in (0.01, 0.05, 0.1, 0.5, 1, 5):
            self.assertIn(bound, gaps)
        self.assertIn('le="1.0"', self.full.text)  # as Python's library writes it

    def test_steps_are_a_histogram_without_a_distribution(self):
        self.assertEqual(self.full.buckets("vllm:iteration_tokens_total"), [(math.inf, STATS["steps"])])
        self.assertEqual(self.full.value("vllm:iteration_tokens_total_sum"), STATS["rows"])
        self.assertEqual(self.full.value("vllm:iteration_tokens_total_count"), STATS["steps"])

    def test_finished_requests_add_up(self):
        """vLLM #31503: aborted ones are counted."""
        for finish in FINISHES:
            value = self.full.value("vllm:request_success_total", finished_reason=finish)
            self.assertEqual(value, self.load.finished[finish])
            self.assertGreater(value, 0)
        self.assertEqual(sum(self.load.finished.values()), self.full.value("vllm:e2e_request_latency_seconds_count"))

    def test_the_engines_figures(self):
        full = self.full
        self.assertEqual(full.value("vllm:num_requests_running"), 7)
        self.assertEqual(full.value("vllm:num_requests_waiting"), 3)
        self.assertEqual(full.value("vllm:num_requests_waiting_by_reason", reason="capacity"), 3)
        self.assertEqual(full.value("vllm:num_requests_waiting_by_reason", reason="deferred"), 0)
        self.assertEqual(full.value("vllm:kv_cache_usage_perc"), 0.25)  # without what is kept of those that have ended
        self.assertEqual(full.value("vllm:prefix_cache_queries_total"), 5000)
        self.assertEqual(full.value("vllm:prefix_cache_hits_total"), 1200)
        self.assertEqual(full.value("fastdecode_prefix_cache_queries_total"), 5000)
        self.assertEqual(full.value("vllm:num_preemptions_total"), 5)
        self.assertEqual(full.value("vllm:prompt_tokens_total"), 10 ** 15 + 1)
        self.assertEqual(full.value("vllm:generation_tokens_total"), 777)
        self.assertEqual(full.value("fastdecode_steps_total"), 1000)
        self.assertEqual(full.value("fastdecode_spart_busy_seconds_total"), 1.5)
        self.assertEqual(full.value("fastdecode_last_step_age_seconds"), 0.25)

    def test_the_servers_figures(self):
        full = self.full
        self.assertEqual(full.value("fastdecode_build_info", version=VERSION), 1)
        for name, value in [("connections", 12), ("streams", 4), ("waiting_requests", 6), ("waiting_prompt_tokens", 9000),
                            ("access_log_dropped_total", 23), ("ready", 1), ("front_cpu_seconds_total", 4.25),
                            ("slow_clients_total", 1), ("clients_gone_total", 2)]:
            self.assertEqual(full.value("fastdecode_" + name), value, name)
        for limit, reason, value in [("requests", "reqs", 21), ("tokens", "tokens", 22)]:
            self.assertEqual(full.value("fastdecode_refused_requests_total", limit=limit), value)
            self.assertEqual(full.value("vllm:admission_rejections_total", reason="max_num_queued_" + reason), value)
        for (route, code), count in self.load.responses.items():
            self.assertEqual(full.value("fastdecode_http_responses_total", route=route, code=code), count)
        for route, seconds in self.load.route_seconds.items():
            self.assertAlmostEqual(full.value("fastdecode_http_request_duration_seconds_sum", route=route) / seconds, 1)
            self.assertEqual(full.value("fastdecode_http_request_duration_seconds_count", route=route),
                             sum(count for (of, _), count in self.load.responses.items() if of == route))

    def test_homes_by_their_names(self):
        ages = (2, 60)  # the second one has never replied, and the engine is 60 s old
        for name, age, (up, hops, work_ns, _, losses, pages, used, hits, cached) in zip(HOMES, ages, HOME_FIGURES):
            self.assertEqual(self.full.value("fastdecode_prefix_cache_hits_total", home=name), hits)
            for what, value in [("up", up), ("hops_total", hops), ("work_seconds_total", work_ns * 1e-9),
                                ("last_reply_age_seconds", age), ("losses_total", losses), ("kv_pages", pages),
                                ("kv_pages_used", used), ("kv_pages_cached", cached)]:
                self.assertAlmostEqual(self.full.value("fastdecode_home_" + what, home=name), value, msg=what)

    def test_recoveries(self):
        self.assertEqual(self.full.value("fastdecode_recoveries_total"), 3)
        self.assertEqual(self.full.value("fastdecode_recovered_total"), 2)
        for name, values in zip(["recovery", "recovery_queue", "loss_detection"], zip(*RECOVERIES)):
            name = f"fastdecode_{name}_seconds"
            self.assertEqual(self.full.families[name].type, "histogram")
            for bound in ("0.003", "0.3", "0.5", "10.0", "+Inf"):
                self.assertEqual(self.full.value(name + "_bucket", le=bound), sum(v <= float(bound) for v in values), name)
                self.assertEqual(self.empty.value(name + "_bucket", le=bound), 0)
            self.assertAlmostEqual(self.full.value(name + "_sum"), sum(values))

    def test_places_add_up(self):
        for (phase, place), ns in self.load.place_ns.items():
            self.assertAlmostEqual(self.full.value("fastdecode_place_seconds_total", phase=phase, place=place), ns * 1e-9,
                                   places=6)
        for phase, steps in self.load.steps.items():
            self.assertEqual(self.full.value("fastdecode_place_steps_total", phase=phase), steps)
        self.assertAlmostEqual(self.full.value("fastdecode_queue_seconds_total"), self.load.queue_ns * 1e-9, places=6)

    def test_no_age_exceeds_the_engines(self):
        """vLLM #49135. No step and no reply is no age since the host was started."""
        calls = HOME_CALLS[1:] + ["stat now_ns 900000000000", "stat created_ns 899000000000", "page"]
        (text,) = write_pages(calls)
        page = Page(text)
        self.assertEqual(page.value("fastdecode_last_step_age_seconds"), 1)
        self.assertEqual(page.value("fastdecode_home_last_reply_age_seconds", home=HOMES[1]), 1)

    def test_a_page_does_not_grow_with_requests(self):
        self.assertLess(abs(len(self.fuller.text) - len(self.full.text)), len(self.full.text) / 10)
        self.assertEqual(len(self.fuller.samples), len(self.full.samples))


@unittest.skipUnless(shutil.which("promtool"), "there is no promtool; Debian's package prometheus has it")
class Linter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (text,) = write_pages(HOME_CALLS + ENGINE_CALLS + SERVER_CALLS + Load(2).calls + ["page"])
        cls.families = re.split(r"^(?=# HELP )", text, flags=re.M)[1:]

    def complaints(self, prefix):
        text = "".join(family for family in self.families if family.startswith("# HELP " + prefix))
        self.assertGreater(text.count("# TYPE"), 20)
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60,
                              encoding="utf-8")
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def test_ours(self):
        self.assertEqual(self.complaints("fastdecode_"), (0, []))

    def test_vllms_have_a_colon_and_one_strange_name(self):
        _, lines = self.complaints("vllm:")
        rest = [line for line in lines if not line.endswith("metric names should not contain ':'")]
        # vLLM's name of a histogram.
        self.assertEqual(rest, ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'])


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
