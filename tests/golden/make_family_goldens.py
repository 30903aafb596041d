#!/usr/bin/env python3
"""Makes the part of tests/golden/tokenizer/ that is not byte-level BPE in a tokenizer.json alone.

By the programs that we follow: tokenizers 0.23.3, transformers 5.24.0, sentencepiece 0.2.3, tiktoken 0.14.0 (no torch is
needed).
  llama2/                    a byte-fallback BPE, with golden.json as make_tokenizer_goldens.py writes it
  families.json              changes to llama2/ or base/ (JSON merge patches): how published families differ, and one rule
                             each
  spm/, spm_plain/           tokenizer.model, of SentencePiece
  tekken/, tekken_special/   tekken.json, as Mistral has it, without and with a list of special tokens
  named_*/                   folders in which tokenizer_config.json or special_tokens_map.json name tokens that
                             tokenizer.json lacks
Run make_tokenizer_goldens.py first: the texts are those of texts.json, of which "text_numbers" of a golden picks some, and
base/ is one of its tokenizers.
"""

import json
import random

import tokenizer_fallback
import tokenizer_folders
from tokenizer_fallback import FALLBACK, FUSE, REPLACE_SPACE, SPACE_BACK, added_tokens, decoder, metaspace, normalizer
from tokenizer_parts import OUT, added, byte_level, golden, merge_patch, sequence, split, template, write
from tokenizer_texts import as_python_text
from tokenizer_variants import VARIANT_TEXTS

KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
PHI3_TEXTS = [
    "<|user|>\nhi there<|end|>\n<|assistant|>\n",
    "<|user|> x",
    "<|end|>   \n\n the",
    "the<|end|>the",
    "</s>  x",
    "</s> <s> x",
    "<|assistant|>",
    "  <|end|>  ",
    "<|endoftext|>  x",
    "x <|user|><|end|> y",
]
GEMMA_TEXTS = [
    "\n",
    "\n\n",
    "\n\n\n\n",
    "x\n\n\ny",
    "  \n\n  ",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    " a  b   c    d",
    "▁▁▁",
    "the harbour  the",
    "<bos>x",
    "\n \n\n x",
]
CHATGLM_TEXTS = [
    "<!dummy-prefix!>the harbour",
    "x<!dummy-prefix!>y z",
    "[gMASK]<!sop!>the",
    "the<!dummy-prefix!>",
    "<|user|>\n x",
    "<!dummy-prefix!><!dummy-prefix!>",
    "<!dummy-prefix!> the",
]
ROBERTA_TEXTS = [
    "the <mask> harbour",
    "the<mask>  x",
    "  <mask>",
    "<s>the</s>",
    "<pad><pad>",
    "the <mask>.",
    "<mask><mask>",
]
FALCON_TEXTS = [
    "1234567",
    "a1b22c333d4444",
    "x--y...z!!?",
    "12.5%,3",
    "(a)[b]{c}",
    "don't I'LL",
    "١٢٣٤٥ ½²",
    " ,. x",
    "…—«»„“",
    "$100 +5=<=>",
]
CLAUDE_TEXTS = [
    "ﬁ ① ½ ² ㎞ Ｆｕｌｌ ｶﾞ",
    "e\u0301 \u212b",
    "\u00a0x\u3000y",
    "ﷺ",
    "<EOT>the<META>",
    "ĳ ǆ ŀ",
    "\u1e9b\u0323",
]
KIMI_TEXTS = [
    "小船Boat船",
    "HelloWorld漢字かな",
    "DON'T don't",
    "ÀBÇ\u0301d",
    "中a文B",
    "々〇〆x",
    "ㄅㄆa",
    "1234年5月",
    "𠀀𠀁a",
    "Ⅻ小",
]


def pick(texts, every, longest):
    """Numbers of texts: every so many of those that are not long, and of those that are no UTF-8."""
    short = [i for i, entry in enumerate(texts) if len(as_python_text(entry).encode()) <= longest]
    return short[::every]


def byte_level_families(base):
    vocab = base["model"]["vocab"]
    size = len(vocab)
    falcon = sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(regex=True),
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    )
    yield "falcon", {"pre_tokenizer": falcon, "added_tokens": [added(size, ">>TITLE<<", special=True)]}, FALCON_TEXTS
    names = ["<EOT>", "<META>"]
    yield "claude", {
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": byte_level(regex=True),
        "added_tokens": [added(size + i, name, special=True) for i, name in enumerate(names)],
    }, CLAUDE_TEXTS
    digits = sequence({"type": "Digits", "individual_digits": True}, byte_level(regex=True))
    yield "starcoder", {
        "pre_tokenizer": digits,
        "added_tokens": [added(size, "<fim_prefix>", special=True)],
    }, FALCON_TEXTS
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [
        added(size + i, name, special=True, normalized=True, lstrip=name == "<mask>") for i, name in enumerate(names)
    ]
    roberta = {
        "type": "RobertaProcessing",
        "sep": ["</s>", size + 2],
        "cls": ["<s>", size],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    yield "roberta", {
        "added_tokens": tokens,
        "post_processor": roberta,
        "pre_tokenizer": byte_level(regex=True),
    }, ROBERTA_TEXTS
    yield "kimi", {"pre_tokenizer": sequence(split(KIMI), byte_level())}, KIMI_TEXTS


def byte_level_variants(base):
    size = len(base["model"]["vocab"])
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        yield "punctuation_" + behavior, {
            "pre_tokenizer": sequence({"type": "Punctuation", "behavior": behavior}, byte_level())
        }
    for name, steps in {
        "byte_level_first": [byte_level(regex=True), split(r"\d")],
        "byte_level_first_prefix": [byte_level(True, False), split("Ġ", "MergedWithNext", kind="String")],
        "byte_level_between": [
            {"type": "Digits", "individual_digits": True},
            byte_level(),
            {"type": "Punctuation", "behavior": "Removed"},
        ],
        "whitespace": [{"type": "Whitespace"}, byte_level()],
        "whitespace_split": [{"type": "WhitespaceSplit"}, byte_level()],
        "delimiter": [{"type": "CharDelimiterSplit", "delimiter": "a"}, byte_level()],
        "delimiter_wide": [{"type": "CharDelimiterSplit", "delimiter": "年"}, byte_level(True, True)],
        "intersection": [split(r"[\w&&[^\d_]]+"), byte_level()],
        "intersection_twice": [split(r"[a-z&&[^aeiou]&&[^x-z]]"), byte_level()],
    }.items():
        yield "pre_tokenizer_" + name, {"pre_tokenizer": sequence(*steps)}
    for name, value in {
        "nfkc": {"type": "NFKC"},
        "nfkd_lowercase": normalizer("NFKD", "Lowercase"),
        "accents": normalizer("NFD", "StripAccents"),
        "replace_lowercase": normalizer(
            "NFC", {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, "Lowercase"
        ),
        "prepend": {"type": "Prepend", "prepend": "x"},
        "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    }.items():
        yield "normalizer_" + name, {"normalizer": value}
    for name, value in {
        "none": None,
        "fuse": FUSE,
        "replace": {"type": "Replace", "pattern": {"String": "Ġ"}, "content": " "},
        "sequence": decoder(byte_level(True, True)),
        "replace_first": decoder(
            {"type": "Replace", "pattern": {"String": "Ġ"}, "content": "ĠĠ"}, byte_level(True, True)
        ),
    }.items():
        yield "decoder_" + name, {"decoder": value}
    tokens = [added(size, "[CLS]", special=True), added(size + 1, "[SEP]", special=True)]
    yield "bert_processing", {
        "added_tokens": tokens,
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", size + 1], "cls": ["[CLS]", size]},
    }


def fallback_families(spec):
    vocab = spec["model"]["vocab"]
    size = len(vocab)
    first = {"normalizer": None, "pre_tokenizer": metaspace("first")}
    yield "llama_new", first, []
    names = ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]"]
    yield "mistral", {**first, **added_tokens(spec, *((name, dict(special=True)) for name in names))}, [
        "<s>[INST] hi [/INST] the</s>",
        "[INST]the",
    ]
    phi3 = added_tokens(
        spec,
        ("<|endoftext|>", dict(special=True)),
        *((name, dict(special=True, rstrip=True)) for name in ("<|assistant|>", "<|end|>", "<|user|>"))
    )
    phi3["added_tokens"][2] = added(2, "</s>", rstrip=True)
    yield "phi3", {**phi3, "post_processor": template([], [], {})}, PHI3_TEXTS
    replace = {"type": "Replace", "pattern": {"String": "<!dummy-prefix!>"}, "content": "▁"}
    names = ["[gMASK]", "<!sop!>", "<|user|>"]
    tokens = added_tokens(spec, *((name, dict(special=True)) for name in names))
    ids = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    yield "chatglm3", {
        **tokens,
        "normalizer": normalizer(replace, REPLACE_SPACE),
        "decoder": decoder(FALLBACK, metaspace("always", True)),
        "pre_tokenizer": split("<!dummy-prefix!>", "MergedWithNext", kind="String"),
        "post_processor": template(names[:2], [], ids),
    }, CHATGLM_TEXTS
    grown = ["\n", "\t", "▁▁▁"]
    vocab_patch = {piece: size + i for i, piece in enumerate(piece for piece in grown if piece not in vocab)}
    runs = [(piece, {}) for piece in ("\n\n", "\n\n\n", "▁▁", "▁▁▁")] + [
        (name, dict(special=True)) for name in ("<start_of_turn>", "<end_of_turn>")
    ]
    grown_spec = merge_patch(spec, {"model": {"vocab": vocab_patch}})
    yield "gemma", {
        "model": {"vocab": vocab_patch},
        **added_tokens(grown_spec, *runs),
        "normalizer": REPLACE_SPACE,
        "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
        "decoder": decoder(SPACE_BACK, FALLBACK, FUSE),
    }, GEMMA_TEXTS


def replacing(spec, patch):
    """The patch, in which what it says of these sections stands in their place."""
    result = dict(patch)
    for section in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if result.get(section) and spec.get(section):
            result[section] = {**{key: None for key in spec[section] if key not in result[section]}, **result[section]}
    return result


def make_families(texts, base, llama2, rng):
    numbers = pick(texts, 5, 90)
    chosen = [texts[i] for i in numbers]
    result = []

    def add(kind, name, base_name, spec, patch, make, more, decodes, picks=()):
        patch = replacing(spec, patch)
        made = make(merge_patch(spec, patch), [*picks, *more], rng, decodes)
        picked = {"text_numbers": numbers} if picks else {}
        kept = {"texts": more} if picks else {"texts": made.get("texts", more)}
        result.append({"kind": kind, "name": name, "base": base_name, "patch": patch, **picked, **made, **kept})

    def byte_level_golden(spec, all_texts, rng, decodes):
        return golden(spec, [text if isinstance(text, dict) else {"text": text} for text in all_texts], rng, decodes)

    fallback_golden = tokenizer_fallback.fallback_golden
    for name, patch, more in byte_level_families(base):
        add(name, name, "base", base, patch, byte_level_golden, more, 10, chosen)
    for name, patch in byte_level_variants(base):
        add("byte_level_rules", name, "base", base, patch, byte_level_golden, VARIANT_TEXTS, 3)
    for name, patch, more in fallback_families(llama2):
        add(name, name, "llama2", llama2, patch, fallback_golden, more, 15, [as_python_text(entry) for entry in chosen])
    for name, patch, more in tokenizer_fallback.variants(llama2):
        add("fallback_rules", name, "llama2", llama2, patch, fallback_golden, more, 6)
    return result


def main():
    rng = random.Random(11)
    texts = json.loads((OUT / "texts.json").read_text())
    base = json.loads((OUT / "base" / "tokenizer.json").read_text())
    llama2 = tokenizer_fallback.train_fallback(900)
    numbers = pick(texts, 2, 400)
    made = tokenizer_fallback.fallback_golden(llama2, [as_python_text(texts[i]) for i in numbers], rng, 60)
    made["texts"] = []
    write(OUT / "llama2" / "tokenizer.json", llama2)
    write(
        OUT / "llama2" / "tokenizer_config.json",
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "legacy": False,
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>"},
            "unk_token": "<unk>",
        },
    )
    write(OUT / "llama2" / "golden.json", {"text_numbers": numbers, **made})
    write(OUT / "families.json", make_families(texts, base, llama2, rng))
    tokenizer_folders.make_sentencepiece(texts, rng)
    tokenizer_folders.make_tekken(texts, rng)
    tokenizer_folders.make_named(texts, rng)


if __name__ == "__main__":
    main()
