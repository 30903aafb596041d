#!/usr/bin/env python3
"""Opens the HTML report in headless Chromium and looks at what became of it.

usage: html_test.py WRITE_EXPORT. Exits with 77 where there is no Chromium.
"""
import collections
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROGRAM = ""
AWKWARD = "<b>&\"home\", 1\\2\n'é'"
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
FINISH = 8
VOID = {"meta", "link", "br", "hr", "img", "input"}


def export(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=120, check=True).stdout.decode()


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children, self.text = [], ""

    def all(self, tag):
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)

    def has_class(self, name):
        return name in self.attributes.get("class", "").split()

    def words(self):
        return self.text + "".join(child.words() for child in self.children)


class Dom(html.parser.HTMLParser):
    """What Chromium made of the document, as a tree."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("", {}, None)
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        element = Element(tag, dict(attributes), self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_endtag(self, tag):
        while self.at.parent is not None and self.at.tag != tag:
            self.at = self.at.parent
        if self.at.parent is not None:
            self.at = self.at.parent

    def handle_data(self, data):
        self.at.text += data

    def section(self, name):
        return next(section for section in self.root.all("section") if section.attributes.get("id") == name)


def open_in_chromium(document):
    """The DOM after the scripts have run, and what they said on the console."""
    with tempfile.TemporaryDirectory(prefix="fd-html-") as folder:
        path = pathlib.Path(folder, "report.html")
        path.write_text(document, encoding="utf-8")
        run = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={folder}/profile", "--enable-logging=stderr",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", path.as_uri()],
            capture_output=True, timeout=100, check=True)
    console = [line for line in run.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return Dom(run.stdout.decode()), console


def in_ns(text):
    number, unit = text.replace("\u00a0", " ").split()
    return float(number) * UNITS[unit]


class Report(unittest.TestCase):
    SECONDS = "3"

    @classmethod
    def setUpClass(cls):
        cls.document = export("html", cls.SECONDS)
        cls.dom, cls.console = open_in_chromium(cls.document)

    def charts(self, section):
        return list(self.dom.section(section).all("svg"))

    def test_scripts_ran_without_complaint(self):
        self.assertEqual(self.console, [])
        self.assertEqual(next(self.dom.root.all("html")).attributes.get("data-ready"), "1")

    def test_it_asks_nobody_for_anything(self):
        self.assertNotIn("://", self.document)
        self.assertNotRegex(self.document, r"@import|url\(")
        for element in self.dom.root.all("html"):
            for tag in ("script", "link", "img", "iframe", "object", "image", "use", "a"):
                for found in element.all(tag):
                    for name in ("src", "href", "xlink:href", "data"):
                        self.assertIn(found.attributes.get(name, "data:,"), ("data:,",), tag)
        policy = [meta.attributes["content"] for meta in self.dom.root.all("meta")
                  if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
        self.assertEqual(len(policy), 1)
        self.assertIn("default-src 'none'", policy[0])

    def test_a_request_would_be_refused_and_a_complaint_seen(self):
        """The policy holds: a script that asks for something is told no."""
        broken = self.document.replace(
            '"use strict";', '"use strict"; new Image().src = "http://192.0.2.1/x"; throw new Error("planted");')
        dom, console = open_in_chromium(broken)
        self.assertIn("Content Security Policy", " ".join(console))
        self.assertIn("planted", " ".join(console))
        self.assertNotIn("data-ready", next(dom.root.all("html")).attributes)

    def test_sections_come_with_verdicts_first(self):
        sections = [section.attributes["id"] for section in self.dom.root.all("section")]
        self.assertEqual(sections, ["findings", "slo", "path", "requests", "steps", "homes", "busy", "achieved", "worst",
                                    "phases", "provenance"])

    def test_every_chart_says_what_it_is(self):
        charts = list(self.dom.root.all("svg"))
        # Path, two of percentiles, steps, three homes, three tokens.
        self.assertEqual(len(charts), 10)
        for chart in charts:
            self.assertTrue(chart.attributes.get("aria-label"))
            self.assertGreater(len(list(chart.all("rect"))) + len(list(chart.all("path"))), 2)

    def test_drawings_have_no_broken_numbers(self):
        for chart in self.dom.root.all("svg"):
            for tag in ("rect", "path", "line", "circle", "text"):
                for shape in chart.all(tag):
                    for name, value in shape.attributes.items():
                        if name not in ("class", "text-anchor"):
                            self.assertRegex(value, r"^[ML0-9.,-]+$", f"{tag} {name}")
                    for side in ("width", "height", "r"):
                        self.assertGreater(float(shape.attributes.get(side, 1)), 0)

    def test_the_bar_of_the_token_has_the_shares_of_the_table(self):
        (chart,) = self.charts("path")
        parts = [rect for rect in chart.all("rect")]
        rows = [[cell.words() for cell in row.all("td")] for row in self.dom.section("path").all("tr")][1:]
        shares = {row[0]: float(row[2].split()[0]) / 100 for row in rows if "%" in row[2]}
        self.assertGreater(len(parts), 8)
        self.assertAlmostEqual(sum(shares.values()), 1, delta=0.005)
        at = 0
        for part in parts:
            name = next(part.all("title")).words().split(":")[0]
            self.assertAlmostEqual(float(part.attributes["width"]) / 1000, shares[name], delta=0.0015, msg=name)
            self.assertAlmostEqual(float(part.attributes["x"]), at, delta=0.6, msg=name)
            at = float(part.attributes["x"]) + float(part.attributes["width"])

    def test_curves_rise(self):
        for section, series in (("requests", 4), ("phases", 8)):
            (chart,) = self.charts(section)
            groups = [group for group in chart.all("g") if group.has_class("series")]
            self.assertEqual(len(groups), series)
            legend = [button for button in self.dom.section(section).all("button")]
            self.assertEqual([button.attributes["data-series"] for button in legend], [str(i) for i in range(series)])
            for group in groups:
                for path in group.all("path"):
                    points = [tuple(map(float, point.split(",")))
                              for point in re.split("[ML]", path.attributes["d"])[1:]]
                    for before, after in zip(points, points[1:]):
                        self.assertLessEqual(before[0], after[0])
                        self.assertGreaterEqual(before[1] + 0.05, after[1])

    def test_dots_are_at_the_percentiles_of_the_table(self):
        table = {}
        for row in self.dom.section("requests").all("tr"):
            cells = [cell.words() for cell in row.all("td")]
            if cells:
                table[cells[1]] = dict(zip(("p50", "p90", "p99", "p99.9"), cells[4:8]))
        (chart,) = self.charts("requests")
        dots = [next(dot.all("title")).words() for dot in chart.all("circle")]
        self.assertGreater(len(dots), 4)
        for dot in dots:
            metric, name, value = re.fullmatch(r"(.*), (p[0-9.]+): (.*)", dot).groups()
            if name in table[metric]:
                self.assertEqual(table[metric][name], value)

    def test_the_slowest_step_is_in_the_picture(self):
        """However many there are, each stretch of the recording shows its least and its largest."""
        ends = collections.defaultdict(list)
        for event in json.loads(export("events", self.SECONDS)):
            if event[1] == FINISH:
                ends[event[6]].append(event[3])
        slowest = max(after - before for times in ends.values() for before, after in zip(times, times[1:]))
        (chart,) = self.charts("steps")
        titles = [next(rect.all("title")).words() for rect in chart.all("rect") if rect.has_class("envelope")]
        largest = max(in_ns(re.search(r" to (.*), median", title).group(1)) for title in titles)
        self.assertAlmostEqual(largest / slowest, 1, delta=0.01)
        steps = sum(int(re.search(r": (\d+),", title).group(1)) for title in titles)
        self.assertAlmostEqual(steps, sum(map(len, ends.values())), delta=4)

    def test_slow_tokens_are_timelines(self):
        charts = self.charts("worst")
        self.assertEqual(len(charts), 3)
        for chart in charts:
            titles = [next(rect.all("title")).words() for rect in chart.all("rect")]
            self.assertGreater(sum(title.startswith("S-Part, layer") for title in titles), 5)
            self.assertTrue(any(title.startswith("home attend, layer") for title in titles))

    def test_texts_from_outside_stay_texts(self):
        text = next(self.dom.root.all("body")).words()
        self.assertGreater(text.count(AWKWARD), 6)
        for bold in self.dom.root.all("b"):
            self.assertNotIn("home\"", bold.words())

    def test_light_and_dark(self):
        self.assertIn("prefers-color-scheme: dark", self.document)
        self.assertIn("color-scheme: light dark", self.document)


class ManyEvents(unittest.TestCase):
    def test_a_million_events_fit_into_a_small_report(self):
        seconds = "42"
        self.assertGreater(int(export("event-count", seconds)), 1_000_000)
        document = export("html", seconds)
        self.assertLess(len(document), 1_000_000)
        dom, console = open_in_chromium(document)
        self.assertEqual(console, [])
        (chart,) = dom.section("steps").all("svg")
        self.assertGreater(len(list(chart.all("rect"))), 550)


class Less(unittest.TestCase):
    def test_without_a_recording_there_are_figures_alone(self):
        dom, console = open_in_chromium(export("html-figures"))
        self.assertEqual(console, [])
        self.assertEqual([section.attributes["id"] for section in dom.root.all("section")],
                         ["achieved", "phases", "provenance"])
        self.assertNotIn("tokens in", next(dom.root.all("header")).words())

    def test_an_empty_result_is_a_report_too(self):
        dom, console = open_in_chromium(export("html-empty"))
        self.assertEqual(console, [])
        self.assertEqual([section.attributes["id"] for section in dom.root.all("section")], ["provenance"])


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: there is no chromium; tools/setup --tests installs it")
        sys.exit(77)
    PROGRAM = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
