#!/usr/bin/env python3
"""Compares what our program and jinja2, set up as transformers does, make of real chat templates, byte for byte.

usage: compare_templates.py --templates DIR --program FASTDECODE [--references PYTHON] [--only WORD] [--shown N]
Renders every *.jinja in DIR with the conversations of conversations.py. PYTHON, by default that of build/references,
has jinja2, and takes over if this one has none. Where jinja2 fails, ours must fail, too, with a message. Prints a line
a template, the first differences and a summary. Exits with 1 if there is any difference; with 77, saying so, if DIR or
jinja2 is missing.
"""

import argparse
import concurrent.futures
import difflib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import conversations

AT_ONCE = 2  # processes
TIMEOUT_S = 60


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def import_reference(python):
    """The module reference, in this process; if it has no jinja2, the program starts again with `python`."""
    try:
        import reference

        return reference
    except ImportError as error:
        installed = pathlib.Path(python)
        if not installed.exists() or pathlib.Path(sys.prefix).resolve() == installed.absolute().parents[1].resolve():
            skip(f"{error} (--references names a Python that has it)")
        os.execv(installed, [str(installed), *sys.argv])


def rendered_by(program, template, context, now, folder):
    """{"text": bytes}, or {"error": message}; {"broken": why} if it neither rendered nor refused."""
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json") as file:
        json.dump(context, file)
        file.flush()
        command = [program, "template", str(template), "--context", file.name, "--now", str(now)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env={**os.environ, "TZ": "UTC"})
        except subprocess.TimeoutExpired:
            return {"broken": f"no end after {TIMEOUT_S} s"}
    if run.returncode == 0:
        return {"text": run.stdout}
    message = run.stderr.decode(errors="replace").strip()
    if run.returncode < 0 or not message:
        return {"broken": f"exit status {run.returncode}, message {message!r}"}
    return {"error": message}


def difference(expected, ours):
    """None if they agree."""
    if "broken" in ours:
        return ours["broken"]
    if "error" in expected:
        return None if "error" in ours else f"jinja2 fails ({expected['error']}), ours renders"
    if "error" in ours:
        return f"ours fails: {ours['error'].splitlines()[0]}"
    if expected["text"].encode() == ours["text"]:
        return None
    lines = [text.splitlines(keepends=True) for text in (expected["text"], ours["text"].decode(errors="replace"))]
    shown = [repr(line) for line in difflib.unified_diff(*lines, "jinja2", "ours", n=1)]
    return "\n      ".join(["the texts differ:", *shown[2:12]])


def compare_template(reference, template, arguments, folder):
    """Prints the template's line; the number of cases and of differences."""
    source = template.read_text(encoding="utf-8")
    cases = list(conversations.contexts())
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        program, now = arguments.program, reference.NOW
        ours = [pool.submit(rendered_by, program, template, context, now, folder) for _, context in cases]
        expected = [reference.render(source, context) for _, context in cases]
    differences = []
    for (name, _), wanted, future in zip(cases, expected, ours):
        if why := difference(wanted, future.result()):
            differences.append(f"{name}: {why}")
    errors = sum("error" in answer for answer in expected)
    state = f"{len(differences)} DIFFERENCES" if differences else "equal"
    print(f"{template.name}: {len(cases)} cases, {errors} of them errors: {state}", flush=True)
    for line in differences[:arguments.shown]:
        print(f"    {line}")
    return len(cases), len(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", metavar="DIR", type=pathlib.Path, required=True)
    parser.add_argument("--program", required=True)
    references = pathlib.Path(__file__).resolve().parents[4] / "build" / "references" / "bin" / "python3"
    parser.add_argument("--references", default=references)
    parser.add_argument("--only", default="", help="only templates whose file's name has this word")
    parser.add_argument("--shown", type=int, default=3, help="differences of one template that are printed")
    arguments = parser.parse_args()

    templates = sorted(file for file in arguments.templates.glob("*.jinja") if arguments.only in file.name)
    if not templates:
        skip(f"there is no chat template in {arguments.templates}")
    reference = import_reference(arguments.references)
    with tempfile.TemporaryDirectory() as folder:
        counts = [compare_template(reference, template, arguments, folder) for template in templates]
    cases, differences = map(sum, zip(*counts))
    print(f"{len(templates)} templates, {cases} cases, {differences} differences, against {reference.SOURCE}")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
