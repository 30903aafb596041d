"""Golden folders of a tokenizer that is in another file than tokenizer.json, or not in it alone: see
make_family_goldens.py."""

import base64
import io

import sentencepiece
import tiktoken
import transformers

from tokenizer_parts import LLAMA3, OUT, added, decoding_of, encoding_of, random_ids, train, write
from tokenizer_texts import CODE, SENTENCES, as_python_text
from tokenizers import Regex, pre_tokenizers

SYMBOLS = ["<|user|>", "<|end|>", "▁▁", "[INST]", "ab"]
SYMBOL_TEXTS = [
    "<|user|>hi<|end|>",
    " <|user|> hi <|end|> the",
    "the<|user|>the harbour",
    "<|user|><|end|>",
    "x    y",
    "▁▁▁",
    "abab a b",
    "[INST] the [/INST]",
    "<|user",
    "",
    " ",
    "   ",
    " the",
    "the ",
]


def sentencepiece_golden(model, texts, more, rng):
    """Texts that hold a control symbol, which SentencePiece never finds in a text, are left out; so are ids of control
    symbols and the unknown piece, and runs of bytes that are UTF-8 in part, which other programs decode otherwise."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = range(processor.get_piece_size())
    silent = [i for i in pieces if processor.is_control(i) or processor.is_unknown(i)]
    names = [processor.id_to_piece(i) for i in silent]
    accepted = [
        i
        for i, entry in enumerate(texts)
        if i % 2 == 0
        and len(as_python_text(entry).encode()) <= 200
        and not any(name in as_python_text(entry) for name in names)
    ]
    encodings = []
    for text in [as_python_text(texts[i]) for i in accepted] + more:
        ids = processor.encode(text)
        decoded = processor.decode(ids)
        encodings.append({"ids": ids, **({} if decoded == text else {"decoded": decoded})})
    ordinary = [i for i in pieces if i not in silent and not processor.is_byte(i)]
    decodes = []
    for _ in range(40):
        ids = []
        for _ in range(rng.randint(1, 8)):
            data = rng.choice([b"", b"", "é".encode(), "文".encode(), b"\x80", b"\xff\xfe", b"\x80\x80"])
            run = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in data]
            ids += run + [rng.choice(ordinary) for _ in range(rng.randint(1, 2))]
        text = processor.decode(ids)
        decodes.append({"ids": ids, "decoded": text, "skipped": text})
    return {
        "text_numbers": accepted,
        "texts": more,
        "vocab_size": len(pieces),
        "encodings": encodings,
        "decodes": decodes,
    }


def make_sentencepiece(texts, rng):
    lines = [line for line in SENTENCES + CODE.split("\n") if line] * 2
    plain = dict(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    for name, size, settings, bos in [
        (
            "spm",
            850,
            dict(
                character_coverage=0.98,
                user_defined_symbols=SYMBOLS[:2],
                control_symbols=["<mask>"],
                split_digits=True,
                allow_whitespace_only_pieces=True,
            ),
            True,
        ),
        ("spm_plain", 900, dict(character_coverage=0.985, user_defined_symbols=SYMBOLS, add_dummy_prefix=False), False),
    ]:
        writer = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=writer, vocab_size=size, **plain, **settings
        )
        # SentencePiece puts the dummy prefix before a symbol, too, with which a text begins; transformers' tokenizers, which
        # find symbols before anything else, do not, and are followed there.
        prefix = settings.get("add_dummy_prefix", True)
        more = [t for t in SYMBOL_TEXTS if not (prefix and t.startswith(tuple(SYMBOLS)))]
        made = sentencepiece_golden(writer.getvalue(), texts, more, rng)
        if bos:
            for encoding in made["encodings"]:
                encoding["before"] = [1]
        (OUT / name).mkdir(exist_ok=True)
        (OUT / name / "tokenizer.model").write_bytes(writer.getvalue())
        write(
            OUT / name / "tokenizer_config.json",
            {
                "tokenizer_class": "LlamaTokenizer",
                "add_bos_token": bos,
                "add_eos_token": False,
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
            },
        )
        write(OUT / name / "golden.json", made)


# The names that mistral-common gives where the file has no list.
TEKKEN_NAMES = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
OTHER_NAMES = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "<|tail|>"]
TEKKEN_TEXTS = [
    "<s>[INST] hi [/INST]the</s>",
    "[TOOL_CALLS][{\"name\": \"x\"}]",
    "<SPECIAL_30>the",
    "[THINK]x[/THINK]",
    "<|tail|> x",
]
FAR = 1 << 20  # where special tokens are put, which tiktoken has in the same row as the others


def byte_of_character():
    """The bytes behind the characters of a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + i): byte for i, byte in enumerate(hidden)}}


def tekken_golden(ranks, special, offset, texts, rng):
    encoding = tiktoken.Encoding(
        "tekken",
        pat_str=LLAMA3,
        mergeable_ranks=ranks,
        special_tokens={name: FAR + token_id for name, token_id in special.items()},
    )
    names = {token_id: name.encode() for name, token_id in special.items()}
    pieces = {offset + rank: piece for piece, rank in ranks.items()}

    def ids_of(text, allowed):
        ids = encoding.encode(text, allowed_special=allowed, disallowed_special=())
        return [i - FAR if i >= FAR else i + offset for i in ids]

    def text_of(ids, skip):
        return b"".join(pieces[i] if i in pieces else b"" if skip else names[i] for i in ids).decode(
            "utf-8", errors="replace"
        )

    numbers = [i for i, entry in enumerate(texts) if i % 3 == 0 and len(as_python_text(entry).encode()) <= 200]
    encodings = []
    for text in [as_python_text(texts[i]) for i in numbers] + TEKKEN_TEXTS:
        ids, as_text = ids_of(text, "all"), ids_of(text, set())
        case = {"ids": ids}
        if as_text != ids:
            case["as_text"] = as_text
        decoded, skipped = text_of(ids, False), text_of(ids, True)
        if decoded != text:
            case["decoded"] = decoded
        if skipped != decoded:
            case["skipped"] = skipped
        encodings.append(case)
    decodes = []
    for _ in range(30):
        ids = [
            rng.choice(list(names)) if rng.random() < 0.1 else offset + rng.randrange(len(ranks))
            for _ in range(rng.randint(1, 20))
        ]
        decodes.append({"ids": ids, "decoded": text_of(ids, False), "skipped": text_of(ids, True)})
    # Which special tokens stand around a text, tiktoken does not say.
    return {
        "text_numbers": numbers,
        "texts": TEKKEN_TEXTS,
        "vocab_size": offset + len(ranks),
        "judges_around": False,
        "encodings": encodings,
        "decodes": decodes,
    }


def make_tekken(texts, rng):
    steps = [
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    vocab = train(pre_tokenizers.Sequence(steps), 760)["model"]["vocab"]
    bytes_of = byte_of_character()
    longer = [bytes(map(bytes_of.get, piece)) for piece in sorted(vocab, key=vocab.get) if len(piece) > 1]
    row = [bytes([byte]) for byte in range(256)] + longer
    unused = 30  # entries at the end that do not count
    for name, offset, version, named in [("tekken", 40, "v3", None), ("tekken_special", 12, "v11", OTHER_NAMES)]:
        entries = []
        for rank, piece in enumerate(row):
            text = piece.decode("utf-8", errors="replace")
            entries.append(
                {
                    "rank": rank,
                    "token_bytes": base64.b64encode(piece).decode(),
                    "token_str": None if "\ufffd" in text else text,
                }
            )
        config = {
            "pattern": LLAMA3,
            "num_vocab_tokens": len(row),
            "default_vocab_size": len(row) - unused + offset,
            "default_num_special_tokens": offset,
            "version": version,
        }
        file = {"config": config, "vocab": entries}
        if named:
            file["special_tokens"] = [
                {"rank": i, "token_str": name, "is_control": i != 7} for i, name in enumerate(named)
            ]
        names = named or TEKKEN_NAMES
        names = names + [f"<SPECIAL_{i}>" for i in range(len(names), offset)]
        ranks = {piece: rank for rank, piece in enumerate(row[:-unused])}
        write(OUT / name / "tekken.json", file)
        write(OUT / name / "golden.json", tekken_golden(ranks, {n: i for i, n in enumerate(names)}, offset, texts, rng))


NAMED_TEXTS = [
    "<|tool|>",
    "the <|tool|> harbour",
    "x  <|left|>y",
    "<|word|> a<|word|>b <|word|>",
    "caf\u00e9 cafe\u0301",
    "<|eos|>the<|eos|>",
    "<|pad|><|more|> <|more2|>",
    "<|flags|>",
    "x  <|flags|>  y",
    "<|shown|> x",
    "the",
    "",
    " <|mask|> x",
    "<|eos|",
    "<|EOS|>",
]


def decoder_entries(*tokens):
    return {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in tokens}


def make_named(texts, rng):
    """By transformers' PreTrainedTokenizerFast, of the folder that is written."""
    spec = train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 300)
    size = len(spec["model"]["vocab"])
    listed = [added(size, "<|end|>", special=True), added(size + 1, "<|flags|>")]
    cases = {
        # Tokens that only added_tokens_decoder has.
        "named_decoder": (
            {
                "added_tokens_decoder": decoder_entries(
                    *listed,
                    added(size + 2, "<|tool|>"),
                    added(size + 3, "<|left|>", special=True, lstrip=True),
                    added(size + 4, "<|word|>", single_word=True, rstrip=True),
                    added(size + 5, "café", normalized=True),
                ),
                "eos_token": "<|end|>",
            },
            None,
        ),
        # The same tokens with other flags.
        "named_flags": (
            {
                "added_tokens_decoder": decoder_entries(
                    added(size, "<|end|>", special=False),
                    added(size + 1, "<|flags|>", special=True, lstrip=True, rstrip=True),
                ),
                "eos_token": "<|end|>",
            },
            None,
        ),
        # Named tokens that are in no list, which are numbered as they come.
        "named_config": (
            {
                "bos_token": "<|bos|>",
                "eos_token": {
                    "__type": "AddedToken",
                    "content": "<|eos|>",
                    "lstrip": False,
                    "rstrip": False,
                    "single_word": False,
                    "normalized": False,
                },
                "pad_token": "<|pad|>",
                "additional_special_tokens": ["<|more|>", "<|more2|>"],
            },
            None,
        ),
        "named_map": (
            {},
            {
                "eos_token": "<|eos|>",
                "mask_token": {
                    "content": "<|mask|>",
                    "lstrip": True,
                    "rstrip": False,
                    "normalized": True,
                    "single_word": False,
                },
            },
        ),
    }
    for name, (config, special_map) in cases.items():
        folder = OUT / name
        write(folder / "tokenizer.json", {**spec, "added_tokens": listed})
        write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config})
        if special_map:
            write(folder / "special_tokens_map.json", special_map)
        judge = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer = judge.backend_tokenizer
        numbers = [i for i, entry in enumerate(texts) if i % 12 == 0 and len(as_python_text(entry)) <= 90]
        chosen = [as_python_text(texts[i]) for i in numbers] + NAMED_TEXTS
        count = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        special = list(tokenizer.get_added_tokens_decoder())
        write(
            folder / "golden.json",
            {
                "text_numbers": numbers,
                "texts": NAMED_TEXTS,
                "vocab_size": count,
                "bos_id": judge.bos_token_id,
                "eos_id": judge.eos_token_id,
                "special": [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special],
                "encodings": [encoding_of(tokenizer, text) for text in chosen],
                "decodes": [decoding_of(tokenizer, random_ids(rng, count, special)) for _ in range(10)],
            },
        )
        print(
            name,
            {i: str(token) for i, token in tokenizer.get_added_tokens_decoder().items()},
            judge.eos_token,
            judge.all_special_tokens,
        )
