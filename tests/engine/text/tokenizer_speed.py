#!/usr/bin/env python3
"""Measures how fast our tokenizer encodes on one core, and Hugging Face's `tokenizers` in alternation with it.

usage: tokenizer_speed.py BENCH DIR... [--text FILE] [--rounds N] [--core C]
BENCH is the program tokenizer_bench, DIR a folder with a tokenizer.json (without one only ours is measured). Without
--text, English text of 2 MB is gathered from what Debian installs: licences, and documentation in /usr/share/doc.
Prints medians: MB/s of each over the text in chunks of 16 KB, their ratio, and how long 100 KB and 1 MB without any white
space take ours. All by CPU time, once warm.
"""

import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
CHUNK_BYTES = 16 << 10  # as in tokenizer_bench.cc
TEXT_BYTES = 2_000_000


def is_english(text):
    """Prose rather than tables: mostly letters and spaces, and the words that English has."""
    letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    return letters > 0.85 * len(text) and text.count(" the ") > len(text) / 400


def gather_text():
    """The same on every machine that has the same packages."""
    parts, size = [], 0
    licences = sorted(path for path in pathlib.Path("/usr/share/common-licenses").glob("*") if path.is_file())
    documents = sorted(
        path for path in pathlib.Path("/usr/share/doc").rglob("*") if path.is_file() and not path.is_symlink()
    )
    seen = set()
    for path in licences + documents:
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            text = data[:200_000].decode("utf-8")
        except (OSError, EOFError, UnicodeDecodeError):
            continue
        if len(text) < 4000 or hash(text[:2000]) in seen or not is_english(text):
            continue
        seen.add(hash(text[:2000]))
        parts.append(text)
        size += len(text.encode())
        if size >= TEXT_BYTES:
            break
    return "".join(parts).encode()[:TEXT_BYTES].decode("utf-8", errors="ignore")


def chunks_of_lines(text):
    data, chunks, start = text.encode(), [], 0
    while start < len(data):
        end = data.find(b"\n", min(start + CHUNK_BYTES, len(data)))
        end = len(data) if end < 0 else end + 1
        chunks.append(data[start:end].decode())
        start = end
    return chunks


def measure(bench, folder, text, text_file, rounds):
    theirs_tokenizer = None
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        theirs_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        theirs_tokenizer.no_truncation()
    chunks = chunks_of_lines(text)
    megabytes = len(text.encode()) / 1e6
    ours, theirs, short, long = [], [], [], []
    for warm in [False] + [True] * rounds:
        if theirs_tokenizer:
            start = time.process_time()
            for chunk in chunks:
                theirs_tokenizer.encode_batch_fast([chunk], add_special_tokens=False)  # without offsets
            if warm:
                theirs.append(megabytes / (time.process_time() - start))
        if warm:
            run = subprocess.run([bench, folder, text_file, "2"], stdout=subprocess.PIPE, check=True)
            result = json.loads(run.stdout)
            ours.append(megabytes / result["encode_s"][-1])  # the second round, as theirs
            short.append(result["unbroken_100k_s"][-1])
            long.append(result["unbroken_1m_s"][-1])
    line = f"{folder.name}: ours {statistics.median(ours):.2f} MB/s"
    if theirs:
        ratios = [a / b for a, b in zip(ours, theirs)]
        line += (
            f", tokenizers {statistics.median(theirs):.2f} MB/s, ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    long_s, short_s = statistics.median(long), statistics.median(short)
    print(
        f"{line}; without white space 100 KB {1e3 * short_s:.1f} ms, 1 MB {1e3 * long_s:.1f} ms "
        f"({long_s / short_s:.1f} times)",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("dirs", nargs="+", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    text = args.text.read_text(encoding="utf-8") if args.text else gather_text()
    print(f"{len(text.encode())} bytes of text, core {args.core}, {args.rounds} rounds in alternation")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt", newline="") as file:
        file.write(text)
        file.flush()
        for folder in args.dirs:
            measure(args.bench, folder, text, file.name, args.rounds)


if __name__ == "__main__":
    main()
