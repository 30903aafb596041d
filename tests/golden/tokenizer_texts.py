"""The texts of the tokenizer goldens: see make_tokenizer_goldens.py.

Only characters assigned in Unicode 14 are used, and of those only what `tokenizers` normalizes by current rules (its NFC
tables are older than its other ones).
"""
import random
import unicodedata

from tokenizers import normalizers

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
