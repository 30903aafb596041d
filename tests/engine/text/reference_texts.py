"""Random texts and token ids for compare_with_references.py: the same ones for the same seed.

Most are short. They mix what breaks tokenizers: all scripts, marks that combine, runs of white space, emoji, code, tokens and
what is almost one, characters again and again, and bytes that are not UTF-8.
"""

import functools
import pathlib
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "golden"))
import tokenizer_texts as goldens  # noqa: E402
from tokenizers import normalizers, pre_tokenizers  # noqa: E402

NORMALIZERS = [("NFD", normalizers.NFD()), ("NFKC", normalizers.NFKC()), ("NFKD", normalizers.NFKD())]
LOWERCASE = normalizers.Lowercase()
STRIP_ACCENTS = normalizers.StripAccents()
PUNCTUATION = pre_tokenizers.Punctuation("removed")
BREAKERS = [b"\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x85",
    "\u200b",
    " \n",
    "\n ",
    "\t\t",
    "        ",
    "\u1680",
    "\ufeff",
]
JOINERS = [
    "▁",
    "▁▁",
    "<0x41>",
    "<0x0A>",
    "<0xE2>",
    "<unk>",
    "Ġ",
    "Ċ",
    "<",
    ">",
    "|",
    "\u2581 \u2581",
    "</",
    "[INST]",
    "##",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🙂", "🫠", "\u200d", "\ufe0f"]


@functools.cache
def usable(cp):
    """Whether `tokenizers`, whose tables are of several ages, takes this character as Unicode 14 does."""
    if not goldens.usable(cp):
        return False
    c = chr(cp)
    for form, normalizer in NORMALIZERS:
        for s in (c, "a" + c + "\u0327\u0301"):
            if normalizer.normalize_str(s) != unicodedata.normalize(form, s):
                return False
    ascii_punctuation = cp < 128 and not c.isalnum() and c.isprintable() and c != " "
    punctuation = ascii_punctuation or unicodedata.category(c).startswith("P")
    return (
        LOWERCASE.normalize_str(c) == c.lower()
        and (STRIP_ACCENTS.normalize_str(c) == "") == (unicodedata.category(c) == "Mn")
        and (not PUNCTUATION.pre_tokenize_str(c)) == punctuation
    )


@functools.cache
def script(name):
    first, last = goldens.SCRIPT_RANGES[name]
    step = max(1, (last - first) // 400)
    return [chr(cp) for cp in range(first, last + 1, step) if usable(cp)] or ["x"]


def near_miss(rng, content):
    """A token, or what is almost one."""
    at = rng.randrange(len(content) + 1)
    return rng.choice(
        [
            content,
            content,
            content,
            content[:at],
            content[at:],
            content[:at] + " " + content[at:],
            content[:at] + content[at + 1 :],
            content.upper(),
            content.lower(),
            content + content[:at],
            content[:1] + content,
            " " + content,
            content + " ",
            "\n" + content + "\n",
            content[:at] + "\u0301" + content[at:],
        ]
    )


class Texts:
    """Draws texts for one tokenizer, in which `contents` are tokens."""

    def __init__(self, rng, contents):
        self.rng = rng
        self.contents = [content for content in contents if content] or ["<s>"]
        self.lines = [line for line in goldens.SENTENCES + goldens.CODE.split("\n") if line]
        self.special = [text for text in goldens.special_texts() if 0 < len(text) <= 60]

    def word(self):
        rng = self.rng
        chars = script(rng.choice(list(goldens.SCRIPT_RANGES)))
        return "".join(rng.choice(chars) for _ in range(rng.randint(1, 5)))

    def piece(self):
        rng = self.rng
        kind = rng.randrange(12)
        if kind < 3:
            line = rng.choice(self.lines)
            start = rng.randrange(len(line))
            return line[start : start + rng.randint(1, 24)]
        if kind == 3:
            return self.word()
        if kind == 4:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 3)))
        if kind == 5:
            return rng.choice(SPACES[:5]) * rng.randint(1, 12)
        if kind == 6:
            return rng.choice(EMOJI)
        if kind == 7:
            return near_miss(rng, rng.choice(self.contents))
        if kind == 8:
            return rng.choice("aeoxAZ019.-=_ '\n") * rng.randint(1, 20)
        if kind == 9:
            return rng.choice("aeinoAEÅéüкᄀ") + "".join(
                rng.choice(script("combining")) for _ in range(rng.randint(1, 3))
            )
        if kind == 10:
            return rng.choice(JOINERS)
        return rng.choice(self.special)

    def next(self):
        """{"text": string} or, for one in twenty, {"hex": bytes that are not UTF-8}."""
        rng = self.rng
        pieces = 150 if rng.random() < 0.003 else rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8])
        text = "".join(self.piece() for _ in range(pieces))
        if rng.random() >= 0.05:
            return {"text": text}
        data = text.encode()
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice(BREAKERS + [b""]) + data[at + rng.randrange(2) :]
        return {"hex": data.hex()}


def random_ids(rng, judge):
    """Ids of any tokens, and runs of those that stand for single bytes."""
    ids = []
    for _ in range(rng.randint(1, 8)):
        if judge.rare and rng.random() < 0.5:
            ids += [rng.choice(judge.rare) for _ in range(rng.randint(1, 4))]
        else:
            ids.append(rng.choice(judge.ids))
    return ids
