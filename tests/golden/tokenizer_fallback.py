"""Byte-fallback tokenizers, as Llama 2 and Gemma have them: what make_family_goldens.py trains, and changes to it that
are one rule each."""

import collections
import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokenizer_parts import added, decoding_of, encoding_of, sequence, split, template
from tokenizer_texts import CODE, SENTENCES
from tokenizer_variants import VARIANT_TEXTS

REPLACE_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
SPACE_BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}

TEXTS = [
    "the harbour, and the storm",
    "  two  spaces ",
    " lead",
    "trail ",
    "   ",
    " ",
    "",
    "the▁boat▁▁x",
    "▁",
    " ▁x",
    "x\n\ny \n z",
    "tab\tx",
    "été e\u0301te\u0301",
    "小船2024年",
    "😀 x😀😀",
    "秋秋の船",
    "a_b-c--d",
    "1234 56",
    "\u00a0x\u3000y",
    "<0x41>x<0xE6>",
    "<s>x</s>",
    "x <s> y",
    "<unk>",
    "the~the^",
    "\0\x01",
]
NORMALIZER_TEXTS = TEXTS[:7] + [
    "\t x \n",
    "\u00a0\u3000x\u2003",
    "ÀÉÎõü Ångström",
    "A\u030a\u0327 e\u0301\u0323",
    "İstanbul ISIK ΣΑΣ ẞß Ǆ",
    "ﬁ ① ½ ² ㎞ Ｆｕｌｌ ｶﾞ",
    "가각 \u1100\u1161\u11a8",
    "Œuvre ŁÓDŹ Ж Й й ё",
    "xxaxxbx",
    "aaa  bbb   ccc",
    "the\nthe",
    "Ώ ᾳ ΐ ǰ",
    "שּׁ \u05e9\u05c1 \u0928\u093c",
    "<S>X</s>",
]
ADDED_TEXTS = [
    "<a>",
    " <a> ",
    "x<a>y",
    "x <a> y",
    "<a><a>",
    "<a> <a>x",
    "harbour",
    "the harbour x",
    "Harbour HARBOUR",
    "storm",
    "a storm.",
    "storms astorm",
    "▁storm",
    "x <m>y",
    "x  <m>  y",
    "<m>",
    "x<n>  y",
    "<n>\n\n<m>",
    "the<n>",
    "hello",
    "HELLO Hello hellohello",
    "World world",
    "<b>the<b> the",
    "é e\u0301 É",
    "  <a>  <n>  <m>  ",
    "",
    "x\u0301<a>\u0301",
    "un mot deux mots",
    "un  mot",
    "<a",
    "<A>",
    "the <a>harbour<n> storm<m>",
]


def byte_piece(byte):
    return f"<0x{byte:02X}>"


def decoder(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


def strip(start=1, stop=0, content=" "):
    return {"type": "Strip", "content": content, "start": start, "stop": stop}


def metaspace(scheme="first", split_words=False, replacement="▁"):
    return {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": split_words}


def normalizer(*steps):
    return {"type": "Sequence", "normalizers": [{"type": step} if isinstance(step, str) else step for step in steps]}


def train_fallback(vocab_size):
    """As Llama 2's. The merges reach across words, so that every wrong split shows, and the alphabet lacks what is rare,
    line ends and tabs."""
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    names = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=names + [byte_piece(byte) for byte in range(256)]
    )
    lines = SENTENCES + CODE.split("\n") + VARIANT_TEXTS * 3
    counts = collections.Counter(character for line in lines for character in line if character not in "\t\r\n ")
    alphabet = sorted(counts, key=lambda character: (-counts[character], character))[:170]
    kept = ["".join(character for character in line if character in alphabet or character == " ") for line in lines]
    tokenizer.train_from_iterator(kept, trainer)
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for pair in (["▁", "▁"], ["▁▁", "▁▁"], ["e", "▁"], ["▁▁", "x"]):
        if "".join(pair) not in vocab:
            vocab["".join(pair)] = len(vocab)
            spec["model"]["merges"].append(pair)
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = [added(i, name, special=True) for i, name in enumerate(names)]
    spec["normalizer"] = normalizer(PREPEND, REPLACE_SPACE)
    spec["decoder"] = decoder(SPACE_BACK, FALLBACK, FUSE, strip())
    spec["post_processor"] = template(["<s>"], [], {"<s>": 1})
    return spec


def random_fallback_ids(rng, vocab, size):
    """Tokens, and bytes that are characters, halves of them, or anything."""
    ids = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(6)
        data = rng.choice(["é", "文", "😀", "\n", " ", "▁", "a"]).encode()
        if kind == 0:
            ids.append(rng.randrange(size + 2))
        elif kind == 1:
            ids.append(rng.choice([0, 1, 2, vocab.get("▁", 0), vocab.get("▁▁", 0), size - 1]))
        elif kind == 2:
            ids += [vocab.get(byte_piece(byte), 0) for byte in data]
        elif kind == 3:
            ids += [vocab.get(byte_piece(byte), 0) for byte in data[: rng.randint(1, len(data))]]
        elif kind == 4:
            ids += [vocab.get(byte_piece(rng.randrange(256)), 0) for _ in range(rng.randint(1, 3))]
        else:
            ids += [rng.choice(list(vocab.values())) for _ in range(rng.randint(1, 3))]
    return ids


def unless_it_panics(function, *args):
    """None where `tokenizers` panics, which it does where a decoder strips more than there is at an end."""
    try:
        return function(*args)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def fallback_golden(spec, texts, rng, random_decodes):
    """With the texts of which there is an encoding."""
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    vocab = spec["model"]["vocab"]
    size = max(max(vocab.values()), *(token["id"] for token in spec["added_tokens"]), 0) + 1
    lists = [random_fallback_ids(rng, vocab, size) for _ in range(random_decodes)]
    encodings = [unless_it_panics(encoding_of, tokenizer, text) for text in texts]
    decodes = [unless_it_panics(decoding_of, tokenizer, ids) for ids in lists]
    panics = {"panics": True} if None in encodings + decodes else {}
    return {
        "texts": [text for text, encoding in zip(texts, encodings) if encoding],
        **panics,
        "vocab_size": size,
        "encodings": [encoding for encoding in encodings if encoding],
        "decodes": [decoding for decoding in decodes if decoding],
    }


def lost_bytes(vocab, lost):
    """A patch that puts tokens of no use in the places of these bytes."""
    return {**{byte_piece(byte): None for byte in lost}, **{f"<gone{byte}>": vocab[byte_piece(byte)] for byte in lost}}


def added_tokens(spec, *contents):
    """The base's own, and these as (content, flags), numbered as `tokenizers` does."""
    tokens, vocab = list(spec["added_tokens"]), spec["model"]["vocab"]
    for content, flags in contents:
        following = max([len(vocab)] + [token["id"] + 1 for token in tokens])
        tokens.append(added(vocab.get(content, following), content, **flags))
    return {"added_tokens": tokens}


SPM = [PREPEND, REPLACE_SPACE]


def normalizer_variants():
    regex = {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "y"}
    for name, value in {
        "none": None,
        "empty": normalizer(),
        "prepend": PREPEND,
        "prepend_long": normalizer({"type": "Prepend", "prepend": "é x"}),
        "prepend_twice": normalizer(PREPEND, REPLACE_SPACE, PREPEND),
        "replace_first": normalizer(REPLACE_SPACE, PREPEND),
        "lowercase": normalizer("Lowercase", *SPM),
        "lowercase_last": normalizer(*SPM, "Lowercase"),
        "nfc": normalizer("NFC", *SPM),
        "nfd": normalizer("NFD", *SPM),
        "nfkc": normalizer("NFKC", *SPM),
        "nfkd": normalizer(*SPM, "NFKD"),
        "accents": normalizer("StripAccents", *SPM),
        "nfd_accents_lowercase": normalizer("NFD", "StripAccents", "Lowercase", *SPM),
        "strip": normalizer({"type": "Strip", "strip_left": True, "strip_right": True}, *SPM),
        "strip_left": normalizer({"type": "Strip", "strip_left": True, "strip_right": False}, *SPM),
        "strip_right_after_prepend": normalizer(*SPM, {"type": "Strip", "strip_left": False, "strip_right": True}),
        "regex": normalizer(regex, *SPM),
        "regex_gone": normalizer({**regex, "content": ""}, *SPM),
        "regex_literal": normalizer(
            {"type": "Replace", "pattern": {"Regex": r"(\s)\s+|te"}, "content": "$1\\1"}, *SPM
        ),
        "replace_longer": normalizer({"type": "Replace", "pattern": {"String": "xx"}, "content": "ééé"}, *SPM),
        "replace_pattern_chars": normalizer({"type": "Replace", "pattern": {"String": "a."}, "content": "!"}, *SPM),
    }.items():
        yield "normalizer_" + name, {"normalizer": value}, NORMALIZER_TEXTS


def pre_tokenizer_variants():
    for scheme in ("first", "always", "never"):
        for words in (False, True):
            patch = {"normalizer": None, "pre_tokenizer": metaspace(scheme, words)}
            yield f"metaspace_{scheme}_{words}", patch, TEXTS
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    for name, value in {
        "old": old,
        "old_without": {**old, "add_prefix_space": False, "prepend_scheme": "never"},
        "other_character": metaspace("always", True, "_"),
        "after_whitespace": sequence({"type": "WhitespaceSplit"}, metaspace("always", True)),
        "first_after_split": sequence(split("-", "MergedWithNext", kind="String"), metaspace("first")),
        "before_digits": sequence(metaspace("first"), {"type": "Digits", "individual_digits": True}),
        "before_punctuation": sequence(metaspace("always", True), {"type": "Punctuation", "behavior": "Isolated"}),
        "whitespace": {"type": "Whitespace"},
        "whitespace_split": {"type": "WhitespaceSplit"},
        "delimiter": {"type": "CharDelimiterSplit", "delimiter": "-"},
    }.items():
        yield "pre_tokenizer_" + name, {"normalizer": None, "pre_tokenizer": value}, TEXTS
    yield "both_prepend", {"pre_tokenizer": metaspace("first", True)}, TEXTS


def decoder_variants():
    for name, value in {
        "none": None,
        "fallback": FALLBACK,
        "fuse": FUSE,
        "replace": SPACE_BACK,
        "empty": decoder(),
        "regex": decoder({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}, FALLBACK, FUSE),
        "metaspace": metaspace("always"),
        "metaspace_never": metaspace("never"),
        "metaspace_first": metaspace("first", True),
        "fallback_metaspace": decoder(FALLBACK, metaspace("always")),
        "no_strip": decoder(SPACE_BACK, FALLBACK, FUSE),
        "strip_two": decoder(SPACE_BACK, FALLBACK, FUSE, strip(2)),
        "strip_both": decoder(SPACE_BACK, FALLBACK, FUSE, strip(1, 1)),
        "strip_stop": decoder(SPACE_BACK, FALLBACK, FUSE, strip(0, 2)),
        "strip_each": decoder(SPACE_BACK, FALLBACK, strip()),
        "strip_each_both": decoder(SPACE_BACK, FALLBACK, strip(1, 1), FUSE),
        "strip_letter": decoder(SPACE_BACK, FALLBACK, FUSE, strip(3, 0, "x")),
        "fallback_first": decoder(FALLBACK, SPACE_BACK, FUSE, strip()),
    }.items():
        yield "decoder_" + name, {"decoder": value}, TEXTS


def model_variants(spec):
    lost = lost_bytes(spec["model"]["vocab"], [0xE6, 0x9F, 0x0A, 0x09, 0x7E])
    for name, model in [
        ("", {}),
        ("_single", {"fuse_unk": False}),
        ("_no_unk", {"unk_token": None}),
        ("_no_unk_single", {"unk_token": None, "fuse_unk": False}),
    ]:
        yield "lost_bytes" + name, {"model": {"vocab": lost, **model}}, TEXTS
        yield "no_fallback" + name, {"model": {"byte_fallback": False, **model}}, TEXTS
    yield "whole", {
        "model": {"ignore_merges": True},
        "normalizer": None,
        "pre_tokenizer": metaspace("always", True),
    }, TEXTS


def added_variants(spec):
    contents = [
        ("<a>", dict(special=True)),
        ("harbour", dict(normalized=True)),
        ("storm", dict(normalized=True, single_word=True)),
        ("<m>", dict(lstrip=True)),
        ("<n>", dict(rstrip=True, special=True)),
        ("HELLO", dict(normalized=True)),
        ("World", {}),
        ("<b>", dict(normalized=True, special=True)),
        ("É", dict(normalized=True)),
        ("un mot", dict(normalized=True)),
    ]
    tokens = added_tokens(spec, *contents)
    first = {"normalizer": None, "pre_tokenizer": metaspace("first")}
    for name, patch in [
        ("prepend", {}),
        ("replace", {"normalizer": REPLACE_SPACE}),
        ("first", first),
        ("always_split", {"normalizer": None, "pre_tokenizer": metaspace("always", True)}),
        ("lowercase", {"normalizer": normalizer("Lowercase", *SPM)}),
        ("nfd", {"normalizer": normalizer("NFD", "StripAccents", *SPM)}),
        ("strip", {"normalizer": normalizer({"type": "Strip", "strip_left": True, "strip_right": True}, *SPM)}),
    ]:
        yield "added_" + name, {**tokens, **patch}, ADDED_TEXTS


def variants(spec):
    """(name, patch of spec, texts)"""
    yield from normalizer_variants()
    yield from pre_tokenizer_variants()
    yield from decoder_variants()
    yield from model_variants(spec)
    yield from added_variants(spec)
