#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/ with Hugging Face's `tokenizers` (made with version 0.23.3), the judge of our tokenizer.

Each golden tokenizer is a small byte-level BPE in the style of a published family, trained on text made here:
  NAME/tokenizer.json, NAME/tokenizer_config.json   what a model's folder would hold
  NAME/golden.json                                  what `tokenizers` makes of texts.json, and of random ids
  texts.json                                        the texts, as strings or as bytes in hex that are not UTF-8
  variants.json                                     changes to base/tokenizer.json (JSON merge patches), with goldens each
Only characters assigned in Unicode 14 are used, and of those only what `tokenizers` normalizes by current rules (its NFC
tables are older than its other ones).
"""
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "tokenizer"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SENTENCES = """The small boat came back to the harbour before the storm, and nobody asked where it had been.
She'd said that they'll come if we're there; I've no doubt it's true, but he doesn't think so, and I'd rather not.
HE'LL SAY IT'S FINE, THEY'VE GONE, I'M SURE WE'RE LATE, YOU'D KNOW, DON'T YOU?
In 2024 the town counted 12345 houses, 678 gardens and 90 wells; 3.14159 is not 22/7.
Das kleine Boot kam vor dem Sturm zurück, und die Straße war naß und grün.
Le petit bateau est rentré avant l'orage; l'été, ça n'était pas prévu, où était-il passé?
El barco pequeño volvió antes de la tormenta. ¿Dónde había estado? ¡Nadie lo sabía!
O pequeno barco voltou ao porto antes da tempestade, e não houve ninguém que perguntasse.
Malá loď se vrátila před bouřkou; žluťoučký kůň příšerně úpěl ďábelské ódy.
Mała łódź wróciła przed burzą, a nikt nie zapytał, gdzie się podziewała źdźbło.
Küçük tekne fırtınadan önce İstanbul limanına döndü, ışık söndü.
Con thuyền nhỏ đã trở về bến cảng trước cơn bão, và không ai hỏi nó đã đi đâu.
Маленькая лодка вернулась в гавань до шторма, и никто не спросил, где она была.
Маленький човен повернувся до гавані; їжак з'їв ґудзик.
Η μικρή βάρκα γύρισε στο λιμάνι πριν από την καταιγίδα, κανείς δεν ρώτησε πού ήταν.
הסירה הקטנה חזרה לנמל לפני הסערה, ואיש לא שאל איפה הייתה.
عاد القارب الصغير إلى الميناء قبل العاصفة، ولم يسأل أحد أين كان. ١٢٣٤٥٦
قایق کوچک پیش از توفان به بندر برگشت؛ می‌خواهم بدانم. ۱۲۳۴
छोटी नाव तूफ़ान से पहले बंदरगाह लौट आई, और किसी ने नहीं पूछा। १२३४५
ছোট নৌকাটি ঝড়ের আগে বন্দরে ফিরে এল, কেউ জিজ্ঞাসা করেনি।
சிறிய படகு புயலுக்கு முன் துறைமுகத்திற்குத் திரும்பியது.
చిన్న పడవ తుఫానుకు ముందు ఓడరేవుకు తిరిగి వచ్చింది.
เรือลำเล็กกลับมาถึงท่าเรือก่อนพายุ และไม่มีใครถามว่ามันไปไหนมา ๑๒๓
လှေငယ်လေးသည် မုန်တိုင်းမတိုင်မီ ဆိပ်ကမ်းသို့ ပြန်လာသည်။
პატარა ნავი ქარიშხლამდე დაბრუნდა ნავსადგურში.
Փոքրիկ նավակը փոթորկից առաջ վերադարձավ նավահանգիստ։
小船在暴风雨之前回到了港口，没有人问它去过哪里。二〇二四年，一百二十三。
小船在暴風雨之前回到了港口，沒有人問它去過哪裡。
小さな船は嵐の前に港へ戻った。どこにいたのか、誰も聞かなかった。カタカナとｶﾀｶﾅ。
작은 배는 폭풍 전에 항구로 돌아왔고, 아무도 어디에 있었는지 묻지 않았다.
ትንሹ ጀልባ ከማዕበሉ በፊት ወደ ወደቡ ተመለሰ።
ᏥᏍᏕᏥ ᎤᏬᏢᎾ ᎤᏂᎷᏨ""".split("\n")

CODE = """def walk(tree, depth=0):
\tfor node in tree:
\t\tif node is None:  # nothing here
\t\t\tcontinue
        yield depth, node['name'], node["size"] * 1024

int main(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) { std::printf("%s\\n", argv[i]); }
  return x == 0 ? y->z : (a << 3) | 0xFF;
}
<html><body class="plain">&nbsp;<a href='https://example.org/?q=1&r=2#top'>link</a></body></html>
{"key": [1, 2.5, -3e10, null, true], "path": "C:\\\\temp\\\\file.txt"}
SELECT name, COUNT(*) FROM boats WHERE harbour_id = 42 GROUP BY name;
"""

SCRIPT_RANGES = {
    "latin1": (0xA1, 0xFF), "latin_ext": (0x100, 0x24F), "ipa": (0x250, 0x2AF), "modifiers": (0x2B0, 0x2FF),
    "combining": (0x300, 0x36F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F), "armenian": (0x531, 0x58F),
    "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "syriac": (0x700, 0x74F), "thaana": (0x780, 0x7B1),
    "nko": (0x7C0, 0x7FA), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FE), "gurmukhi": (0xA01, 0xA76),
    "gujarati": (0xA81, 0xAFF), "oriya": (0xB01, 0xB77), "tamil": (0xB82, 0xBFA), "telugu": (0xC00, 0xC7F),
    "kannada": (0xC80, 0xCF2), "malayalam": (0xD00, 0xD7F), "sinhala": (0xD81, 0xDF4), "thai": (0xE01, 0xE5B),
    "lao": (0xE81, 0xEDF), "tibetan": (0xF00, 0xFDA), "myanmar": (0x1000, 0x109F), "georgian": (0x10A0, 0x10FF),
    "jamo": (0x1100, 0x11FF), "ethiopic": (0x1200, 0x139F), "cherokee": (0x13A0, 0x13FD), "canadian": (0x1400, 0x167F),
    "ogham": (0x1680, 0x169C), "runic": (0x16A0, 0x16F8), "khmer": (0x1780, 0x17F9), "mongolian": (0x1800, 0x18AA),
    "latin_additional": (0x1E00, 0x1EFF), "greek_extended": (0x1F00, 0x1FFE), "punctuation": (0x2010, 0x205E),
    "superscripts": (0x2070, 0x209C), "currency": (0x20A0, 0x20C0), "letterlike": (0x2100, 0x214F),
    "number_forms": (0x2150, 0x218B), "arrows_math": (0x2190, 0x22FF), "enclosed": (0x2460, 0x24FF),
    "box_dingbats": (0x2500, 0x27BF), "braille": (0x2800, 0x28FF), "glagolitic": (0x2C00, 0x2C5F),
    "coptic": (0x2C80, 0x2CFF), "tifinagh": (0x2D30, 0x2D7F), "radicals": (0x2E80, 0x2FD5),
    "cjk_symbols": (0x3001, 0x303F),
    "hiragana": (0x3041, 0x309F), "katakana": (0x30A0, 0x30FF), "bopomofo": (0x3105, 0x312F), "cjk": (0x4E00, 0x9FFC),
    "yi": (0xA000, 0xA4C6), "vai": (0xA500, 0xA62B), "hangul": (0xAC00, 0xD7A3), "compat": (0xF900, 0xFAD9),
    "presentation": (0xFB00, 0xFDFF), "halfwidth": (0xFF01, 0xFFEE), "linear_b": (0x10000, 0x100FA),
    "gothic": (0x10330, 0x1034A), "deseret": (0x10400, 0x1044F), "phoenician": (0x10900, 0x1091F),
    "cuneiform": (0x12000, 0x12399), "hieroglyphs": (0x13000, 0x1342E), "math_alnum": (0x1D400, 0x1D7FF),
    "adlam": (0x1E900, 0x1E95F), "emoji": (0x1F300, 0x1F64F), "cjk_ext_b": (0x20000, 0x2A6DD)}

NFC = normalizers.NFC()


def usable(cp):
    c = chr(cp)
    if unicodedata.category(c) in ("Cn", "Cs", "Co"):
        return False
    return all(NFC.normalize_str(s) == unicodedata.normalize("NFC", s) for s in (c, "a" + c + "\u0327\u0301"))


def script_texts(rng):
    texts = []
    for first, last in SCRIPT_RANGES.values():
        chars = [chr(cp) for cp in range(first, last + 1) if usable(cp)]
        words = ["".join(rng.choice(chars) for _ in range(rng.randint(1, 7))) for _ in range(6)]
        texts.append("".join(w + rng.choice([" ", " ", "  ", ", ", "\n", "'s ", "7"]) for w in words))
    return texts


def special_texts():
    """Texts that hit one rule each."""
    spaces = [" ", "  ", "   ", "    x", "x    ", " x ", "a  b   c    d", "\t", "\t\tx", " \t \t x", "\n", "\n\n",
              "x\n\n\ny",
              " \n \n x", "a\r\nb\r\n\r\nc", "\r", "\r\r\nx", "x \r\n", "   \n   ", "a\u00a0b\u00a0\u00a0c", "\u00a0 x",
              "\u3000\u3000文", "\u2003em\u2009thin\u200ahair", "\u1680x\u2028y\u2029z", "\x0b\x0cx", "\x85next",
              "\x1c\x1d\x1e\x1fx",
              "\u180ex \u180e y", "\u200bzero\u200bwidth", "\ufeffbom", "x\u2060y", " " * 70 + "deep", "\n" * 40,
              "\t" * 33 + "z",
              " \u00a0 \u00a0x", "end  ", "end \n", "  \r\n\t  x"]
    words = ["", "a", "A", "é", "x y", "don't", "DON'T", "I'll we'LL they'Re you'vE he'D I'M it'S", "'s", "''s",
             "'ll'll", "'",
             "can't've", "o'clock 's 't 're 've 'm 'll 'd", "rock'n'roll", "it’s they’ll", "'ſ x'ſ", "l'été d'où",
             "_under_score_",
             "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "e.g. i.e. etc...", "hello world",
             " Hello World",
             "international understanding", "harbourharbour", "hyphen-ated—dash–en", "(nested [brackets {here}])",
             "\"quoted\" «ici» „hier“",
             "https://example.org/path?x=1&y=%20#frag", "user@example.org", "a+b=c; a!=b && c||d",
             "#!/bin/sh\nset -e\n", "$HOME/.bashrc",
             "<html>&amp;</html>", "\\n is not \n", "a\\\\b", "...", "!!!???", "?!?!?!a", " ...!", "%%%s%d"]
    digits = ["0", "12", "123", "1234", "12345678901234567890", "1,234,567.89", "3.14159e-10", "0x1F 0b101 0o17", "007",
              "1st 2nd 3rd",
              "2024-02-29T23:59:59Z", "+49 (0)30 123456", "x1y22z333", "१२३४५६७", "٠١٢٣٤٥٦٧٨٩", "１２３４５", "²³¹ ½ ¾ ⅷ Ⅻ",
              "①②③ ⓐⓑ",
              "一二三四", "𝟏𝟐𝟑𝟒𝟓", "1 2 3", " 1 22 333 4444", "१ 12 ٣"]
    emoji = ["😀", "😀😃😄", "👍🏽 👍🏿", "👨‍👩‍👧‍👦 family", "🏳️‍🌈🏴‍☠️", "🇩🇪🇫🇷🇯🇵 flags", "🇩 🇪", "❤️ ❤ ☀️ ☀︎", "1️⃣2️⃣#️⃣",
             "👩🏾‍💻 codes", "🧑‍🤝‍🧑", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
             "a😀b😀c", "text 🙂 text", "🤷🏻‍♀️¯\\_(ツ)_/¯", "😀" * 30, "\u200d", "\ufe0f", "☺☻♥♦", "🫠🫡🧌"]
    marks = ["e\u0301", "é e\u0301 E\u0301", "a\u0327\u0301 a\u0301\u0327", "n\u0303o",
             "o\u0302\u0323 o\u0323\u0302 \u1ed9", "\u0301", " \u0301", "\u0301\u0302\u0303x",
             "Z\u0351\u036b\u0343a\u0328\u0334l\u0360\u0301g\u035co", "\u212b \u00c5 A\u030a", "\u2126 \u03a9",
             "\u1100\u1161\u11a8 \uac01", "\u1112\u1161\u11ab\u1100\u1173\u11af",
             "\u0915\u093c \u0958", "\u0928\u093c", "\u05e9\u05c1\u05b8", "\u064a\u0654 \u0626",
             "\u0e40\u0e19\u0e37\u0e49\u0e2d", "\ufb01 \ufb03 ﬁn", "\u1e9b\u0323", "\uf900 豈",
             "\u0344 \u0340", "\u0f73\u0f75", "caf\u0065\u0301s", "\u2adc", "\u0cca \u0cc6\u0cc2", "İi̇ıI", "ǆ ǅ ǄŁ",
             "ß ẞ SS"]
    controls = ["\0", "a\0b", "\0\0\0", "\x01\x02\x03", "\x7f", "bell\x07", "\x1b[31mred\x1b[0m", "a\x08b",
                "\u0080\u0081", "\u00ad soft\u00adhyphen", "\u202ertl\u202c",
                "\u2066x\u2069", "\ufffd", "\ufffd\ufffd x", "\ufffe\uffff", "\U0001fffe", "\U000e0001",
                "\ue000 private", "\U0010ffff"]
    longs = ["a" * 1000, "ab" * 500, "abcdefghij" * 60, "the" * 200, "ⴰ" * 150, "文" * 200, "x " * 250,
             "Donaudampfschifffahrtsgesellschaftskapitän" * 5,
             "lopado" * 40, "=" * 300, "-" * 77 + "\n" + "-" * 77, "1" * 500, "é" * 100, "e\u0301" * 100, "Ab1" * 100,
             "\"" * 65]
    tokens = ["<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext|",
              "<|endoftext|>|>", "<|begin_of_text|>hello",
              "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
              "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n",
              "<|im_start|> <|im_end|>", "<tool_call>\n{\"a\": 1}\n</tool_call>",
              "<|reserved_special_token_1|><|reserved_special_token_11|>", "<<|eot_id|>>",
              "<|EOT_ID|>", "e\u0301<|im_end|>e\u0301", "don't<|eot_id|>'t", "  <|eot_id|>  x", "<|eot_id|>\n\n",
              "1<|im_end|>2", "<｜end▁of▁sentence｜>x<｜User｜>", "<|im_end|>\u0301",
              "<s>x</s>", "[INST] hi [/INST]"]
    return spaces + words + digits + emoji + marks + controls + longs + tokens


def invalid_bytes():
    euro, smile, e_acute = "€".encode(), "😀".encode(), "é".encode()
    return [b"\x80", b"\xff", b"\xfe\xff", b"abc\xffdef", euro[:1], euro[:2], smile[:1], smile[:2], smile[:3],
            b"x" + smile[:3] + b"y",
            smile[:3] + smile, e_acute[:1] + b" ", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
            b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80",
            b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80",
            b"\xe2\x28\xa1", b"\xe2\x82\x28", b"\xf0\x28\x8c\xbc",
            b"\xf0\x90\x28\xbc", b"\xf0\x9f\x98" + b"<|endoftext|>", b"caf\xe9 au lait", b"\x93smart\x94",
            b"\xe4\xb8\xad\xe6\x96", b"\xbf" * 10, bytes(range(128, 256)),
            b"ok \xe2\x82\xac \xe2\x82", b"\xc3\xa9\xc3", b"\xff<|im_end|>\xff", b"\n\xff\n"]


def make_texts():
    rng = random.Random(2)
    texts = SENTENCES + [CODE] + CODE.split("\n")[:4] + script_texts(rng) + special_texts()
    mixed = [t for t in SENTENCES + special_texts() if 0 < len(t) < 80]
    texts += ["".join(rng.choice(mixed) + rng.choice(["", " ", "\n"]) for _ in range(4)) for _ in range(40)]
    texts = list(dict.fromkeys(texts))
    return [{"text": t} for t in texts] + [{"hex": b.hex()} for b in invalid_bytes()]


def as_python_text(entry):
    return entry["text"] if "text" in entry else bytes.fromhex(entry["hex"]).decode("utf-8", errors="replace")


def train(pre_tokenizer, vocab_size, special_tokens=(), normalizer=None, more_lines=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(special_tokens), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([*SENTENCES, *CODE.splitlines(True), *more_lines], trainer)
    return json.loads(tokenizer.to_str())


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(token_id, content, special=False, **flags):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False,
            "special": special, **flags}


def template(before, after, ids):
    tokens = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in before + after}
    single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": tokens}


def make_gpt2():
    spec = train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 700, ["<|endoftext|>"])
    spec["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]  # the older spelling
    return spec, {"bos_token": "<|endoftext|>", "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>"}}


def make_llama3():
    steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                       use_regex=False)]
    spec = train(pre_tokenizers.Sequence(steps), 900)
    vocab = spec["model"]["vocab"]
    for word in ["Ġinternational", "understanding", "Ġunderstanding", "harbourharbour", "1234567", "ĠGROUP"]:
        vocab.setdefault(word, len(vocab))  # reached by no merge: only ignore_merges finds them
    spec["model"]["ignore_merges"] = True
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(12)]
    spec["added_tokens"] = [added(len(vocab) + i, name, special=True) for i, name in enumerate(names)]
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    spec["post_processor"] = {"type": "Sequence", "processors": [byte_level(True, True), template(names[:1], [], ids)]}
    return spec, {"bos_token": names[0], "eos_token": names[4]}


def make_qwen2():
    steps = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                      use_regex=False)]
    spec = train(pre_tokenizers.Sequence(steps), 1100, normalizer=normalizers.NFC())
    size = len(spec["model"]["vocab"])
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    spec["added_tokens"] = [added(size + i, name, special=i < 3) for i, name in enumerate(names)]
    spec["post_processor"] = byte_level()
    return spec, {"bos_token": None, "eos_token": "<|im_end|>"}


def make_deepseek():
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in DEEPSEEK]
    spec = train(pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                 800)
    size = len(spec["model"]["vocab"])
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<s>", "</s>"]
    spec["added_tokens"] = [added(size + i, name, special=i < 2, normalized=i > 2) for i, name in enumerate(names)]
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    spec["post_processor"] = template(names[:1], names[1:2], ids)
    return spec, None


def golden(spec, texts, rng, random_decodes):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    encodings = []
    for entry in texts:
        text = as_python_text(entry)
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        full = tokenizer.encode(text, add_special_tokens=True).ids
        case = {"ids": plain}
        tokenizer.encode_special_tokens = True  # special tokens are text like any other
        as_text = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if as_text != plain:
            case["as_text"] = as_text
        if full != plain:
            start = next(i for i in range(len(full) + 1) if full[i:i + len(plain)] == plain)
            case["before"], case["after"] = full[:start], full[start + len(plain):]
        decoded = tokenizer.decode(plain, skip_special_tokens=False)
        skipped = tokenizer.decode(plain, skip_special_tokens=True)
        if decoded != text:
            case["decoded"] = decoded
        if skipped != decoded:
            case["skipped"] = skipped
        encodings.append(case)
    size = max(max(spec["model"]["vocab"].values()), *(t["id"] for t in spec["added_tokens"]), 0) + 1
    special = [t["id"] for t in spec["added_tokens"]] or [0]
    decodes = []
    for _ in range(random_decodes):
        ids = [rng.choice(special) if rng.random() < 0.1 else rng.randrange(size + 3) for _ in range(rng.randint(1,
                                                                                                                 30))]
        decodes.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                        "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    return {"vocab_size": size, "encodings": encodings, "decodes": decodes}


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


VARIANT_TEXTS = ["the harbour, and the storm", "a1b22c333, 4444--5--", "--", "x--y----z", "--lead trail--", "12",
                 "12,34.56", ",,..", "  two  spaces ",
                 "the the the", "", " ", "don't we'll", "It's 2024; HE'LL go", "小船在2024年回到了港口", "カタカナとひらがな",
                 "tab\tand\nnew\r\nline", "été e\u0301te\u0301",
                 "xxabcxxABCxx", "a_b c-d", "under_score's ‿tie", "١٢٣ abc", "aaaa bbbb", "π≈3.14 ½", "\u200dx\u200d",
                 "ſtop 'ſ K"]
PATTERN_TEXTS = VARIANT_TEXTS + ["".join(chr(c) for c in range(0x20, 0x7F)),
                                 "-".join(chr(c) for c in range(0x80, 0x100))]
ADDED_TEXTS = ["a <mask> b", "a<mask>b", "   <mask>   ", "x \t\n<mask>\u00a0y", "<mask><mask>", "<mask> <mask>",
               "a <pad> b", "a<pad>   b", "<pad>  <mask>  c", "<both>", "  <both>  <both>  x",
               "a word here", "awordhere", "word", "sword words word", "word.", "wordword", "word word", "_word",
               "é word é", "éword", "word\u0301", "1word", "word1", "word\u200d", "\u200dword", "word—word",
               "ⓐword ⅷword",
               "café", "cafe\u0301", "cafe\u0301s café", "naïve nai\u0308ve", "two words", "two  words two words",
               "<a>", "<a><b>", "<a><b", "<a><a><b><c>", "x<a>y<b>z", "é", "日本 日本語", "Ġ Ġx",
               "<pad> tail", "<pad>  tail  <both>", "", " ", "<nomatch>"]


def added_variant(vocab, nfc):
    contents = [("<mask>", dict(lstrip=True, special=True)), ("<pad>", dict(rstrip=True, special=True)),
                ("<both>", dict(lstrip=True, rstrip=True)),
                ("word", dict(single_word=True)), ("café", dict(normalized=True)),
                ("nai\u0308ve", dict(normalized=True)), ("two words", dict(normalized=True)),
                ("<a>", {}), ("<a><b>", dict(special=True)), ("<b>", {}), ("é", dict(normalized=not nfc)), ("日本", {}),
                ("日本語", dict(special=True)), ("Ġ", {}), (" tail", {})]
    tokens = []
    for content, flags in contents:
        following = max([len(vocab)] + [token["id"] + 1 for token in tokens])  # as `tokenizers` numbers them
        tokens.append(added(vocab.get(content, following), content, **flags))
    patch = {"added_tokens": tokens}
    if nfc:
        patch["normalizer"] = {"type": "NFC"}
    return patch


def added_spaces_variant(vocab):
    """White space that is a token, and is taken by its neighbours, too. (`tokenizers` panics where a token with lstrip
    ends before what was taken.)"""
    contents = [("\n", dict(lstrip=True, rstrip=True)), ("\t", dict(lstrip=True)), ("\r", dict(rstrip=True)),
                ("\x0b", {}), ("<m>", dict(rstrip=True))]
    tokens = [added(len(vocab) + i, content, **flags) for i, (content, flags) in enumerate(contents)]
    texts = ["a\n\nb", "\n\n\n", " \n \n ", "a\n \n b", "a\t\tb", "a\n\tb", "a\r\rb", "a\r \n b", "a\r\n", "a<m>\nb",
             "a<m>\n b", "a<m> \n\n b", "a<m>\tb", "a<m>\r b", "a<m>\x0bb", "a<m> \x0b b", "a\n\x0b\nb", "<m>\n<m>",
             "<m> <m>\t<m>", "\n", ""]
    return {"added_tokens": tokens}, texts


NEVER_IN_UTF8 = [0xC0, 0xC1, *range(0xF5, 0x100)]


def without_bytes(vocab, lost, *extra):
    """A patch of the vocabulary that takes out these bytes, which stand for themselves and are in no merge, and adds
    `extra` tokens. The last tokens get the ids that are free then."""
    keys = [chr(byte) for byte in lost]
    size = len(vocab) - len(keys)
    free = sorted(vocab[key] for key in keys if vocab[key] < size)
    last = [key for key, token_id in vocab.items() if token_id >= size and key not in keys]
    return {**{key: None for key in keys}, **dict(zip(last, free, strict=True)),
            **{key: size + i for i, key in enumerate(extra)}}


def missing_bytes_texts(rng):
    parts = ["th", "e", "h", "a", "r", "bour", "Z", "Z", "!", "ZZ!", "Q", " ", "😀", "年", "é"]
    return VARIANT_TEXTS + ["thZe", "tZh!e", "Z", "!Z!", "ZtheZ", "theZ", "Zthe", "thZ thZZ thZ!Z", "😀", "the😀😀harbour",
                            "ÀÁõÿ", "thÀe", "秋の船秋秋"] + [
        "".join(rng.choice(parts) for _ in range(rng.randint(2, 20))) for _ in range(20)]


def random_merges_variant(rng, vocab):
    """Merges in an order that no training would give, several ways to one token, and one pair twice."""
    tokens, extra, merges = ["a", "b", "c"], {}, []
    while len(merges) < 60:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left + right) > 6:
            continue
        merges.append([left, right])
        if left + right not in vocab:
            extra.setdefault(left + right, len(vocab) + len(extra))
        if left + right not in tokens:
            tokens.append(left + right)
    rng.shuffle(merges)
    texts = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 60))) for _ in range(25)]
    return {"model": {"vocab": extra, "merges": merges + merges[:1], "ignore_merges": rng.random() < 0.3}}, texts


def make_variants(base, rng):
    vocab = base["model"]["vocab"]
    variants = []

    def add(name, patch, texts=VARIANT_TEXTS):
        entries = [{"text": text} for text in texts]
        variants.append({"name": name, "patch": patch, "texts": texts, **golden(merge_patch(base, patch), entries, rng,
                                                                                3)})

    behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    for behavior in behaviors:
        for invert in (False, True):
            name = behavior + ("_inverted" if invert else "")
            add("regex_" + name, {"pre_tokenizer": sequence(split(r"\d+|[,.]", behavior, invert), byte_level())})
            add("string_" + name, {"pre_tokenizer": sequence(split("--", behavior, invert, "String"), byte_level())})
        add("empty_match_" + behavior, {"pre_tokenizer": sequence(split("a*", behavior), byte_level())})
    for pattern in [r"\w", r"\w+", r"\W", r"[\w]", r"[\w']+|\s", r"[^\w\s]", r"\p{Han}+", r"\p{Katakana}|\p{^L}",
                    r"\P{L}+", r"(?i)abc", r"(?i:'s|'t)", r"^\S+", r"\S+$", r"\u00e9|\x{65}", r"\D{2}",
                    r"(?<=t)h|a(?!b)", r"b++|x{2,}?", r"\x20", r".", r"[\s\S]", r"\v|\t|\f", O200K, LLAMA3, QWEN2]:
        add("pattern " + pattern, {"pre_tokenizer": sequence(split(pattern), byte_level())}, PATTERN_TEXTS)
    for individual in (False, True):
        add(f"digits_{individual}", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": individual},
                                                               byte_level(regex=True))})
    for prefix in (False, True):
        for regex in (False, True):
            add(f"byte_level_{prefix}_{regex}", {"pre_tokenizer": byte_level(prefix, regex)})
    add("prefix_after_split", {"pre_tokenizer": sequence(split(r"\d"), byte_level(True, True))})
    add("nested", {"pre_tokenizer": sequence(sequence(split(",", "Removed")),
                                             sequence(sequence(), split("h", "MergedWithNext"),
                                                      byte_level(regex=True))),
                   "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}})
    add("nfc", {"normalizer": {"type": "NFC"}})
    add("ignore_merges", {"model": {"ignore_merges": True}, "pre_tokenizer": byte_level(regex=True)})
    add("added", added_variant(vocab, False), ADDED_TEXTS)
    add("added_nfc", added_variant(vocab, True), ADDED_TEXTS)
    add("added_prefix", {**added_variant(vocab, False), "pre_tokenizer": byte_level(True, True)}, ADDED_TEXTS)
    add("added_in_vocab", {"added_tokens": [added(vocab["in"], "in", special=True), added(len(vocab), "<x>")]})
    ids = {"<b>": len(vocab), "<e>": len(vocab) + 1}
    tokens = {"added_tokens": [added(i, t, special=True) for t, i in ids.items()]}
    add("template_two", {**tokens, "post_processor": template(["<b>", "<b>"], ["<e>"], ids)}, ["", "the", "<b>x<e>"])
    chain = {"type": "Sequence", "processors": [byte_level(), template(["<b>"], [], ids), byte_level()]}
    add("template_chain", {**tokens, "post_processor": chain}, ["", "the", "<b>x<e>"])
    for i in range(8):
        patch, texts = random_merges_variant(rng, vocab)
        add(f"random_merges_{i}", patch, texts)
    lost = without_bytes(vocab, [*b"Z!", 0xE7, 0xF0, *NEVER_IN_UTF8], "theZ", "Zthe")
    for name, model in [("", {}), ("_whole", {"ignore_merges": True}), ("_unknown", {"unk_token": "Q"}),
                        ("_unknown_fused", {"unk_token": "Q", "fuse_unk": True}),
                        ("_unknown_merged", {"unk_token": "e", "fuse_unk": True})]:
        add("missing_bytes" + name, {"model": {"vocab": lost, **model}}, missing_bytes_texts(rng))
    lost = without_bytes(vocab, NEVER_IN_UTF8)
    tokens = [added(len(vocab) - len(NEVER_IN_UTF8) + i, chr(byte), normalized=True)
              for i, byte in enumerate(NEVER_IN_UTF8)]
    add("bytes_only_added", {"model": {"vocab": lost, "unk_token": "<none>"}, "added_tokens": tokens},
        missing_bytes_texts(rng))
    add("added_spaces", *added_spaces_variant(vocab))
    return variants


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    texts = make_texts()
    write(OUT / "texts.json", texts)
    rng = random.Random(7)
    for name, make in [("gpt2", make_gpt2), ("llama3", make_llama3), ("qwen2", make_qwen2),
                       ("deepseek", make_deepseek)]:
        spec, config = make()
        write(OUT / name / "tokenizer.json", spec)
        if config:
            write(OUT / name / "tokenizer_config.json", config)
        write(OUT / name / "golden.json", golden(spec, texts, rng, 60))
    # Merges across all borders, so that every wrong split shows.
    base = train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), 1000, more_lines=VARIANT_TEXTS * 3)
    write(OUT / "base" / "tokenizer.json", base)
    write(OUT / "variants.json", make_variants(base, rng))
    print(len(texts), "texts,", sum(f.stat().st_size for f in OUT.rglob("*.json")), "bytes")


if __name__ == "__main__":
    main()
