#!/usr/bin/env python3
"""Writes golden.json: what transformers makes of chats, and what it reads from a model's files of them.

usage: make_chat_goldens.py [--out FILE]
Run it with a Python that has transformers 5, tokenizers and jinja2. The file has two lists, with a case a line.

"files": files are texts by path in a model's folder, beside a tokenizer.json; then what PreTrainedTokenizerFast loads:
templates by name (one that has no name is the default) and special_tokens.

"chats": templates by name, special_tokens, input (the arguments of apply_chat_template; what is not there has its
default), and then either text, or error, which is for people: an engine must fail, too, in words of its own. also: other
inputs of which an engine must make the same text, although transformers knows nothing of them.
"""

import argparse
import json
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import jinja2
import transformers

from chat_cases import CHATS, FILES, SPECIAL_TOKENS

TOKENIZER = pathlib.Path(__file__).resolve().parents[3] / "golden/tokenizer/qwen2/tokenizer.json"


def files_golden(case):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TOKENIZER, folder)
        for name, text in case["files"].items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    templates = tokenizer.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    return {**case, "templates": templates, "special_tokens": tokenizer.special_tokens_map}


def chat_golden(case):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), **SPECIAL_TOKENS)
    templates = case["templates"]
    tokenizer.chat_template = templates["default"] if list(templates) == ["default"] else templates
    arguments = {name: value for name, value in case["input"].items() if name not in ("messages", "variables")}
    arguments.setdefault("add_generation_prompt", True)
    variables = case["input"].get("variables", {})
    result = {}
    try:
        result["text"] = tokenizer.apply_chat_template(
            case["input"]["messages"], tokenize=False, **arguments, **variables
        )
    except (ValueError, TypeError, jinja2.exceptions.TemplateError) as error:
        result["error"] = f"{type(error).__name__}: {str(error)[:120]}"
    if ("error" in result) != case.get("fails", False):
        raise SystemExit(f"{case['name']}: {result}")
    case = {name: value for name, value in case.items() if name != "fails"}
    return {**case, "special_tokens": SPECIAL_TOKENS, **result}


def lines(goldens):
    names = [golden["name"] for golden in goldens]
    if len(set(names)) != len(names):
        raise SystemExit(f"a name is there twice: {sorted(name for name in names if names.count(name) > 1)}")
    return ",\n".join(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) for golden in goldens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=pathlib.Path(__file__).with_name("golden.json"), type=pathlib.Path)
    arguments = parser.parse_args()
    files = [files_golden(case) for case in FILES]
    chats = [chat_golden(case) for case in CHATS]
    made_by = f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"
    text = f'{{"made_by":{json.dumps(made_by)},\n"files":[\n{lines(files)}\n],\n"chats":[\n{lines(chats)}\n]}}\n'
    arguments.out.write_text(text, encoding="utf-8")
    errors = sum("error" in golden for golden in chats)
    print(f"{arguments.out}: {len(files)} folders, {len(chats)} chats, {errors} of them errors, by {made_by}")


if __name__ == "__main__":
    main()
