"""Changes to a byte-level tokenizer.json, one rule each: variants.json of make_tokenizer_goldens.py."""
from tokenizer_parts import LLAMA3, O200K, QWEN2, added, byte_level, golden, merge_patch, sequence, split, template

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
