#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/odd.json: what transformers makes of folders whose tokenizer files contradict each
other, are empty in places, or lack what has a default. Needs transformers 5.24.0 and tokenizers 0.23.3, and no torch.

Each case changes tests/golden/tokenizer/base: `patch` is a JSON merge patch of tokenizer.json, in which `null` takes a
field away; `set` puts values, null too, at paths; `files` are other files as they are. Where `split` is true, there are
vocab.json and merges.txt of the base in place of tokenizer.json. The judge is AutoTokenizer, or `tokenizers` where
transformers looks into tokenizer.json in ways of its own (`by`). With `names_only` no texts are judged, with `texts`
these in place of the usual ones.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from tokenizer_odd_cases import CASES  # noqa: E402
from tokenizer_parts import OUT, merge_patch, write  # noqa: E402

TEXTS = [
    "the harbour",
    " two  spaces\n\nand 123, it's \u00e9",
    "<a>x <b> <c>y <d>",
    "<|endoftext|>the<|im_end|>\n<|padding|>",
    "<s>the</s> <unk>",
    "caf\u00e9 cafe\u0301 \ufb01ne",
]


def document_of(case):
    spec = merge_patch(json.loads((OUT / case["base"] / "tokenizer.json").read_text()), case["patch"])
    for path, value in case["set"].items():
        place = spec
        *parents, last = path.split("/")
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        place[last] = value
    return spec


def write_folder(folder, case):
    spec = document_of(case)
    if case["split"]:
        (folder / "vocab.json").write_text(json.dumps(spec["model"]["vocab"], ensure_ascii=False))
        lines = ["#version: 0.2"] + [" ".join(merge) for merge in spec["model"]["merges"]]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    else:
        (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False))
    for name, text in case["files"].items():
        (folder / name).write_text(text)
    if "config.json" not in case["files"]:
        (folder / "config.json").write_text('{"model_type": "llama"}')


def judge_by_transformers(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encodings = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        encodings.append({
            "ids": ids,
            "around": tokenizer(text)["input_ids"],
            "decoded": tokenizer.decode(ids),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True),
        })
    return {
        "class": type(tokenizer).__name__,
        "bos_id": tokenizer.bos_token_id,
        "eos_id": tokenizer.eos_token_id,
        "named": tokenizer.special_tokens_map,
        "added": {str(i): [t.content, tokenizer.decode([i], skip_special_tokens=True) == ""]
                  for i, t in sorted(tokenizer.added_tokens_decoder.items())},
        "encodings": encodings,
    }


def judge_by_tokenizers(folder, texts):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encodings = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        encodings.append({
            "ids": ids,
            "around": tokenizer.encode(text).ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True),
        })
    added = tokenizer.get_added_tokens_decoder()
    return {
        "added": {str(i): [t.content, tokenizer.decode([i], skip_special_tokens=True) == ""]
                  for i, t in sorted(added.items())},
        "encodings": encodings,
    }


JUDGES = {"transformers": judge_by_transformers, "tokenizers": judge_by_tokenizers}


def judge(case):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_folder(folder, case)
        try:
            made = JUDGES[case["by"]](folder, case["texts"] or TEXTS)
        except Exception as error:  # whatever the libraries raise
            made = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}".replace(name, "DIR")}
    if case["names_only"]:
        del made["encodings"], made["added"]
    for text, encoding in zip(case["texts"] or TEXTS, made.get("encodings", [])):
        for name, usual in (("around", encoding["ids"]), ("decoded", text), ("skipped", text)):
            if encoding[name] == usual:
                del encoding[name]
    return made


def main():
    goldens = []
    for name, case in CASES.items():
        case = {"base": "base", "patch": {}, "set": {}, "files": {}, "split": False, "by": "transformers",
                "names_only": False, "texts": None, **case}
        made = judge(case)
        print(f"{name}: {made.get('refused', made.get('class', 'ok'))}", file=sys.stderr)
        goldens.append({"name": name, **{key: value for key, value in case.items() if value}, **made})
    write(OUT / "odd.json", {"texts": TEXTS, "cases": goldens})


if __name__ == "__main__":
    main()
