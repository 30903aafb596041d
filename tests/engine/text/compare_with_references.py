#!/usr/bin/env python3
"""Compares our tokenizer with the programs it follows, on random texts and token ids: `tokenizers`, `sentencepiece`,
`tiktoken` and, where the files of a folder must be put together, `transformers`.

usage: compare_with_references.py FILTER [--kind KIND|all] [--texts N] [--seed S]    the tokenizers of tests/golden
       compare_with_references.py FILTER --real DIR [--kind KIND] [--texts N]        every tokenizer in a folder of DIR
FILTER is the program tokenizer_filter. Prints a line a tokenizer and the first differences, and exits with 1 if there is any
or a tokenizer was refused; with 77, saying so, if a Python package is missing. `--kind list` names the kinds.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

try:
    import sentencepiece  # noqa: F401
    import tiktoken  # noqa: F401
    import tokenizers  # noqa: F401
    import reference_judges
    import reference_texts
except ImportError as error:
    installed = pathlib.Path(__file__).parents[3] / "build" / "references" / "bin" / "python3"
    if installed.exists() and pathlib.Path(sys.prefix).resolve() != installed.parents[1].resolve():
        os.execv(installed, [installed, *sys.argv])
    print(f"skipped: {error} (tools/setup --references installs what is needed)")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "tokenizer"
BATCH = 4000
SHOWN = 3  # differences of one tokenizer that are printed


def as_python_text(entry):
    return entry["text"] if "text" in entry else bytes.fromhex(entry["hex"]).decode("utf-8", errors="replace")


class Filter:
    """Our answers to questions, computed while the judge computes its own."""

    def __init__(self, program, folder, questions):
        self.process = subprocess.Popen(
            [program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.questions = questions
        self.output = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        lines = "".join(json.dumps(question) + "\n" for question in self.questions)
        self.output = self.process.communicate(lines.encode())

    def answers(self):
        """Raises RuntimeError with what the filter said, if it did not answer all."""
        self.thread.join()
        lines = self.output[0].decode().split("\n")[:-1]
        if self.process.returncode != 0 or len(lines) != len(self.questions):
            after = f" at {self.questions[len(lines)]}" if 0 < len(lines) < len(self.questions) else ""
            raise RuntimeError(f"exit code {self.process.returncode}{after}: {self.output[1].decode()[-600:].strip()}")
        return [json.loads(line) for line in lines]


class Comparison:
    def __init__(self, name):
        self.name = name
        self.count = 0
        self.differences = 0

    def expect(self, question, what, ours, theirs):
        if ours == theirs or theirs is None:
            return
        self.differences += 1
        if self.differences > SHOWN:
            return
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        low = max(at - 6, 0)
        print(
            f"-- {self.name}: {what} differs at {at} for {str(question)[:400]}\n"
            f"   ours   ...{ours[low:at + 14]!r}\n   theirs ...{theirs[low:at + 14]!r}"
        )

    def compare_texts(self, program, folder, judge, questions):
        running = Filter(program, folder, questions)
        texts = [as_python_text(question) for question in questions]
        ids = judge.encode(texts)
        as_text = judge.encode(texts, special_tokens=False)
        around = judge.encode(texts, around=True) if judge.around else None
        lists = [each or [] for each in ids]
        decoded, skipped = judge.decode(lists, False), judge.decode(lists, True)
        for i, (question, answer) in enumerate(zip(questions, running.answers())):
            self.expect(question, "ids", answer["ids"], ids[i])
            self.expect(question, "as_text", answer["as_text"], as_text[i])
            if around:
                self.expect(question, "ids_special", answer["ids_special"], around[i])
            if answer["ids"] == ids[i]:  # else one mistake would be reported twice
                self.expect_decoded(question, answer, decoded[i], skipped[i])
        self.count += len(questions)

    def compare_ids(self, program, folder, judge, lists):
        running = Filter(program, folder, [{"ids": ids} for ids in lists])
        decoded, skipped = judge.decode(lists, False), judge.decode(lists, True)
        for i, answer in enumerate(running.answers()):
            self.expect_decoded(lists[i], answer, decoded[i], skipped[i])
        self.count += len(lists)

    def expect_decoded(self, question, answer, decoded, skipped):
        self.expect(question, "decoded", answer["decoded"], decoded)
        self.expect(question, "skipped", answer["skipped"], skipped)
        self.expect(question, "streamed", answer["streamed"], answer["decoded"])
        self.expect(question, "streamed_skipped", answer["streamed_skipped"], answer["skipped"])


def compare_folder(name, program, folder, count, seed):
    """Our tokenizer of the folder with its judge, on so many texts. Raises RuntimeError if it answers nothing."""
    comparison = Comparison(name)
    judge = reference_judges.judge_of(folder)
    comparison.judge = judge.name
    rng = random.Random(f"{seed} {name}")
    texts = reference_texts.Texts(rng, judge.contents)
    left = count
    while left > 0:
        questions = [texts.next() for _ in range(min(left, BATCH))]
        questions = [question for question in questions if judge.accepts(as_python_text(question))]
        comparison.compare_texts(program, folder, judge, questions)
        lists = [reference_texts.random_ids(rng, judge) for _ in range(min(left, BATCH) // 4)]
        comparison.compare_ids(program, folder, judge, lists)
        left -= BATCH
    return comparison


def golden_kinds():
    """Each kind's name, with a list of its tokenizers: (name, a folder, or a document that is tokenizer.json)."""
    sys.path.insert(0, str(GOLDEN.parent))
    from tokenizer_parts import merge_patch

    kinds = {}
    for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir() and path.name != "base"):
        kinds[folder.name] = [(folder.name, folder, None)]
    for file in ("families.json", "variants.json"):
        path = GOLDEN / file
        for variant in json.loads(path.read_text()):
            base = json.loads((GOLDEN / variant.get("base", "base") / "tokenizer.json").read_text())
            name = variant["name"]
            kind = variant.get("kind", path.stem)
            kinds.setdefault(kind, []).append((name, None, merge_patch(base, variant["patch"])))
    return kinds


def compare_kind(kind, tokenizers_of_kind, program, count, seed):
    """Prints a line; returns the names of those that were refused, and the number of differences."""
    start = time.monotonic()
    refused, differences, comparisons, judges = [], 0, 0, set()
    for name, folder, document in tokenizers_of_kind:
        with tempfile.TemporaryDirectory() as made:
            if folder is None:
                folder = pathlib.Path(made)
                (folder / "tokenizer.json").write_text(json.dumps(document))
            label = kind if name == kind else f"{kind}/{name}"
            try:
                comparison = compare_folder(label, program, folder, -(-count // len(tokenizers_of_kind)), seed)
            except RuntimeError as error:
                print(f"-- {label}: NOT COMPARED: {error}")
                refused.append(label)
                continue
            if comparison.differences and name != kind:
                print(f"-- {label}: {comparison.differences} differences")
            differences += comparison.differences
            comparisons += comparison.count
            judges.add(comparison.judge)
    print(
        f"{kind}: {comparisons} comparisons with {', '.join(sorted(judges)) or 'none'}, {differences} differences, "
        f"{len(refused)} of {len(tokenizers_of_kind)} not compared, {time.monotonic() - start:.1f} s",
        flush=True,
    )
    return refused, differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filter")
    parser.add_argument("--kind", default="all")
    parser.add_argument("--texts", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", type=pathlib.Path)
    args = parser.parse_args()
    if args.real:
        kinds = {
            folder.name: [(folder.name, folder, None)]
            for folder in sorted(args.real.iterdir())
            if folder.is_dir() and reference_judges.has_tokenizer(folder)
        }
    else:
        kinds = golden_kinds()
    if args.kind == "list":
        print("\n".join(kinds))
        return 0
    if args.kind != "all" and args.kind not in kinds:
        parser.error(f"--kind is {args.kind}, which is none of {', '.join(kinds)}")
    refused, differences = [], 0
    for kind in kinds if args.kind == "all" else [args.kind]:
        more_refused, more = compare_kind(kind, kinds[kind], args.filter, args.texts or 1000, args.seed)
        refused += more_refused
        differences += more
    print(f"{differences} differences; not compared: {', '.join(refused) or 'none'}")
    return 1 if differences or refused else 0


if __name__ == "__main__":
    sys.exit(main())
