"""All cases of our own for the Jinja engine, one feature each: CASES is [{"name", "template", "context"}]."""

import importlib
import pathlib

from template_cases import cases_of

CASES = []
for file in sorted(pathlib.Path(__file__).parent.glob("templates_*.py")):
    CASES += cases_of(importlib.import_module(file.stem).GROUPS)
