"""What the tokenizer goldens are made of: pieces of a tokenizer.json, and what `tokenizers` makes of texts and ids.

See make_tokenizer_goldens.py.
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenizer_texts import CODE, SENTENCES, as_python_text

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


def encoding_of(tokenizer, text):
    """What `tokenizers` makes of one text; what a test can tell from the rest is left out."""
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
    return case


def decoding_of(tokenizer, ids):
    return {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True)}


def random_ids(rng, size, special):
    return [rng.choice(special) if rng.random() < 0.1 else rng.randrange(size + 3) for _ in range(rng.randint(1, 30))]


def golden(spec, texts, rng, random_decodes):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    encodings = [encoding_of(tokenizer, as_python_text(entry)) for entry in texts]
    size = max(max(spec["model"]["vocab"].values()), *(t["id"] for t in spec["added_tokens"]), 0) + 1
    special = [t["id"] for t in spec["added_tokens"]] or [0]
    decodes = [decoding_of(tokenizer, random_ids(rng, size, special)) for _ in range(random_decodes)]
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


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")
