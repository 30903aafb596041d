#!/usr/bin/env python3
"""Writes golden.json: what jinja2, set up as transformers does, makes of the cases in templates.py.

usage: make_goldens.py [--out FILE]
Run it with a Python that has jinja2, and best transformers, too. The file is a JSON list with a case a line, sorted by
name: name, template, context and now, which is the time for strftime_now in seconds since 1970, in a zone that is UTC;
then either text, or error ("TYPE: MESSAGE", for people: an engine must fail, too, in words of its own) and, for what
cannot be compiled, its line.
"""

import argparse
import json
import pathlib
import re

import reference
from templates import CASES

LARGEST_FILE_BYTES = 400_000


def golden_of(case):
    golden = {**case, "now": reference.NOW, **reference.render(case["template"], case["context"])}
    if re.search(r"\b0x[0-9a-f]{8,}", golden.get("text", "")):
        raise SystemExit(f"{case['name']} prints an address in memory")
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=pathlib.Path(__file__).with_name("golden.json"), type=pathlib.Path)
    arguments = parser.parse_args()

    goldens = sorted((golden_of(case) for case in CASES), key=lambda golden: golden["name"])
    names = [golden["name"] for golden in goldens]
    if len(set(names)) != len(names):
        raise SystemExit(f"a name is there twice: {[name for name in names if names.count(name) > 1]}")
    lines = [json.dumps(golden, ensure_ascii=False, separators=(",", ":")) for golden in goldens]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    if len(text.encode()) > LARGEST_FILE_BYTES:
        raise SystemExit(f"{len(text.encode())} bytes are more than the {LARGEST_FILE_BYTES} that the file may have")
    arguments.out.write_text(text, encoding="utf-8")
    errors = sum("error" in golden for golden in goldens)
    size = len(text.encode())
    print(f"{arguments.out}: {len(goldens)} cases, {errors} of them errors, {size} bytes, by {reference.SOURCE}")


if __name__ == "__main__":
    main()
