#!/usr/bin/env python3
"""Reads exports of a made-up result with programs that are not ours: a JSON Schema validator and Prometheus' parser.

usage: exports_test.py WRITE_EXPORT REPOSITORY_ROOT. Exits with 77 where these are not installed.
"""
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import unittest

DEBIAN_PYTHON = "/usr/bin/python3"
try:
    import jsonschema
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    # Debian's packages are for Debian's Python, which need not be the one that was found first.
    if os.path.exists(DEBIAN_PYTHON) and not os.path.samefile(sys.executable, DEBIAN_PYTHON):
        os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    print(f"skipped: {error}; tools/setup --tests installs python3-jsonschema and python3-prometheus-client")
    sys.exit(77)

PROGRAM = ""
ROOT = pathlib.Path()


def export(name):
    return subprocess.run([PROGRAM, name], capture_output=True, text=True, timeout=60, check=True).stdout


class Json(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads((ROOT / "docs/latency.schema.json").read_text())
        cls.validator = jsonschema.Draft202012Validator(cls.schema)
        cls.document = json.loads(export("json"))

    def errors(self, document):
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
                for error in self.validator.iter_errors(document)]

    def test_the_schema_is_one(self):
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def test_results_are_as_the_schema_says(self):
        self.assertEqual(self.errors(self.document), [])
        self.assertEqual(self.errors(json.loads(export("json-empty"))), [])

    def test_the_schema_knows_every_member(self):
        """So that a new field cannot be forgotten there: all objects of ours are closed, and say what they hold."""
        def objects(node, path):
            if isinstance(node, dict):
                if "properties" in node:
                    yield path, node
                for key, value in node.items():
                    yield from objects(value, f"{path}/{key}")
        found = list(objects(self.schema, ""))
        self.assertGreater(len(found), 15)
        for path, node in found:
            self.assertIs(node.get("additionalProperties"), False, path)
            self.assertEqual(sorted(node["required"]), sorted(node["properties"]), path)

    def test_the_schema_refuses_what_is_wrong(self):
        def changed(change):
            document = copy.deepcopy(self.document)
            change(document)
            return self.errors(document)
        def remove(document): del document["phases"][0]["distribution"]["p99_ns"]
        def add(document): document["homes"][0]["extra"] = 1
        def version(document): document["schema_version"] = 1
        def place(document): document["critical_path"]["parts"][0]["place"] = "kitchen"
        def negative(document): document["recording"]["events"] = -1
        def text(document): document["phases"][0]["share"] = "1"
        for change in (remove, add, version, place, negative, text):
            self.assertEqual(len(changed(change)), 1, change.__name__)

    def test_withheld_percentiles_are_null(self):
        few = next(phase for phase in self.document["phases"] if phase["where"] == "home 1")["distribution"]
        self.assertEqual(few["count"], 12)
        self.assertIsInstance(few["p50_ns"], int)
        self.assertIsNone(few["p90_ns"])

    def test_samples_give_the_percentiles(self):
        for phase in self.document["phases"]:
            ns = phase["distribution"]
            if ns["count"] == 0 or ns["p99_ns"] is None:
                continue
            rank = math.ceil(0.99 * len(ns["samples_ns"])) - 1
            self.assertAlmostEqual(ns["samples_ns"][rank] / ns["p99_ns"], 1, delta=0.02)


class Prometheus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document = json.loads(export("json"))
        cls.families = {family.name: family for family in text_string_to_metric_families(export("prometheus"))}

    def samples(self, family):
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for sample in self.families["fastdecode_latency_" + family].samples}

    def test_every_family_has_help_type_and_unit(self):
        self.assertGreater(len(self.families), 20)
        for name, family in self.families.items():
            self.assertTrue(name.startswith("fastdecode_latency_"), name)
            self.assertTrue(family.documentation.endswith("."), name)
            self.assertIn(family.type, ("gauge", "summary"), name)

    def test_no_series_is_there_twice(self):
        for name, family in self.families.items():
            keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
            self.assertEqual(len(keys), len(set(keys)), name)

    def test_phases_are_summaries_in_seconds(self):
        samples = self.samples("phase_seconds")
        name = "fastdecode_latency_phase_seconds"
        for phase in self.document["phases"]:
            labels = {"phase": phase["name"], "where": phase["where"]}
            ns = phase["distribution"]
            key = tuple(sorted(labels.items()))
            self.assertEqual(samples[(name + "_count", key)], ns["count"])
            if ns["count"]:
                sum_s = ns["count"] * ns["mean_ns"] * 1e-9
                self.assertAlmostEqual(samples[(name + "_sum", key)] / sum_s, 1, places=9)
            for quantile, field in (("0.5", "p50_ns"), ("0.9", "p90_ns"), ("0.99", "p99_ns"), ("0.999", "p999_ns")):
                value = samples.get((name, tuple(sorted({**labels, "quantile": quantile}.items()))))
                if ns[field] is None:
                    self.assertIsNone(value)
                else:
                    self.assertAlmostEqual(value / (ns[field] * 1e-9), 1, places=9)

    def test_labels_come_back_as_they_were(self):
        names = {dict(key[1])["home"] for key in self.samples("home_busy_ratio")}
        self.assertEqual(names, {home["name"] for home in self.document["homes"]})
        self.assertTrue(any('"' in name and "\\" in name and "\n" in name for name in names))

    def test_the_parts_of_a_token_add_up(self):
        parts = sum(self.samples("token_part_seconds").values())
        (token,) = self.samples("token_seconds").values()
        self.assertAlmostEqual(parts / token, 1, places=9)

    def test_an_empty_result_is_well_formed(self):
        families = list(text_string_to_metric_families(export("prometheus-empty")))
        self.assertGreater(len(families), 10)

    def test_lines_end(self):
        self.assertTrue(export("prometheus").endswith("\n"))


if __name__ == "__main__":
    PROGRAM, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
