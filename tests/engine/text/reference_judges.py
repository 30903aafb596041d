"""The programs that judge our tokenizer, each behind the same few functions: see compare_with_references.py.

A judge has
  name       the program
  encode     (texts, special_tokens=True, around=False) -> a list of ids each; special tokens in a text are text like any
             other without `special_tokens`, and the template's tokens are put around with `around`
  decode     (lists of ids, skip_special_tokens) -> a text each
             (either gives None in the place of what makes the program panic)
  around     whether it knows what stands around a text
  accepts    whether its answer for this text counts
  contents   the texts of added or special tokens
  ids        the ids to draw from, `rare` those that deserve to be drawn more often
"""

import base64
import contextlib
import json
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("RUST_BACKTRACE", "0")

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
LLAMA3_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
    *(f"<|reserved_special_token_{i}|>" for i in range(2, 246)),
]
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
# Of *.tiktoken files and those called tokenizer.model, by their number of ranks: the pattern and the special tokens,
# which the file lacks. Where no tokens are known, texts with what could be one are not accepted.
TIKTOKENS = {128000: (LLAMA3, LLAMA3_TOKENS), 200000: (O200K, []), 151643: (QWEN, QWEN_TOKENS), 100256: (LLAMA3, [])}


def is_rare(piece):
    """Whether a token is worth more than its share: a single byte, or nothing but white space."""
    return piece.startswith("<0x") or not piece.strip("▁ \n\t")


@contextlib.contextmanager
def quiet():
    """Standard error of this process goes nowhere: Rust writes there before Python learns of a panic."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def unless_it_panics(function, inputs):
    """The result for each input; None for those at which `tokenizers` panics."""

    def call(some):
        try:
            return function(some)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            return None

    with quiet():
        results = call(inputs)
        return results if results is not None else [(call([each]) or [None])[0] for each in inputs]


class HuggingFace:
    name = "tokenizers"
    around = True

    def __init__(self, folder=None, tokenizer=None):
        if tokenizer is None:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.contents = [token.content for token in added.values()]
        self.ids = range(max(vocab.values(), default=0) + 3)
        self.rare = list(added) + [token_id for piece, token_id in vocab.items() if is_rare(piece)]

    def accepts(self, text):
        return True

    def encode(self, texts, special_tokens=True, around=False):
        self.tokenizer.encode_special_tokens = not special_tokens
        encodings = unless_it_panics(
            lambda some: self.tokenizer.encode_batch_fast(some, add_special_tokens=around), texts
        )
        self.tokenizer.encode_special_tokens = False
        return [None if encoding is None else encoding.ids for encoding in encodings]

    def decode(self, lists, skip_special_tokens):
        return unless_it_panics(
            lambda some: self.tokenizer.decode_batch(some, skip_special_tokens=skip_special_tokens), lists
        )


def transformers_judge(folder):
    """tokenizer.json with what tokenizer_config.json and special_tokens_map.json add, as transformers reads them."""
    import transformers

    judge = HuggingFace(tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer)
    judge.name = "transformers"
    judge.around = False  # the class that adds some is not always the one that is asked here
    return judge


class SentencePiece:
    """Control symbols are never found in a text, and decode to nothing, and an unknown piece decodes to what no other
    program says: texts with the former are not accepted, and neither is drawn. Nor are single bytes, as a run of them
    that is UTF-8 in part is decoded by others in other ways. A text that begins with a user-defined symbol gets the
    dummy prefix before it here, but not in transformers' tokenizers, which find symbols before anything else: it is
    not accepted where a model has that prefix."""

    name = "sentencepiece"
    around = False

    def __init__(self, folder):
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2

        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((folder / "tokenizer.model").read_bytes())
        kinds = model.SentencePiece
        self.control = [p.piece for p in model.pieces if p.type in (kinds.CONTROL, kinds.UNKNOWN)]
        self.contents = [p.piece for p in model.pieces if p.type == kinds.USER_DEFINED]
        self.first = tuple(self.contents) if model.normalizer_spec.add_dummy_prefix else ()
        self.ids = [i for i, p in enumerate(model.pieces) if p.type in (kinds.NORMAL, kinds.USER_DEFINED)]
        self.rare = [i for i in self.ids if is_rare(model.pieces[i].piece) or model.pieces[i].type != kinds.NORMAL]

    def accepts(self, text):
        return not text.startswith(self.first) and not any(piece in text for piece in self.control)

    def encode(self, texts, special_tokens=True, around=False):
        return self.processor.encode(texts)

    def decode(self, lists, skip_special_tokens):
        return self.processor.decode(lists)


class Tiktoken:
    name = "tiktoken"
    around = False

    def __init__(self, ranks, pattern, special, offset):
        import tiktoken

        self.offset = offset
        self.encoding = tiktoken.Encoding("reference", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        self.special = {token_id: content for content, token_id in special.items()}
        self.bytes = {rank: piece for piece, rank in ranks.items()}
        self.contents = list(special)
        self.ids = range(offset, offset + len(ranks))
        self.rare = [offset + rank for piece, rank in ranks.items() if len(piece) == 1] + list(special.values())

    def accepts(self, text):
        return True

    def encode(self, texts, special_tokens=True, around=False):
        allowed = set(self.contents) if special_tokens else set()
        lists = self.encoding.encode_batch(texts, allowed_special=allowed, disallowed_special=(), num_threads=1)
        return [[i if i in self.special else i + self.offset for i in ids] for ids in lists]

    def decode(self, lists, skip_special_tokens):
        def piece(i):
            if i in self.special:
                return b"" if skip_special_tokens else self.special[i].encode()
            return self.bytes.get(i - self.offset, b"")

        return [b"".join(map(piece, ids)).decode("utf-8", errors="replace") for ids in lists]


class Unnamed(Tiktoken):
    """Special tokens have names that the file need not give, so texts that may spell one are not accepted."""

    def accepts(self, text):
        return not any(start in text for start in ("<", "["))


def tekken_judge(path):
    """As mistral-common reads it: ids below default_num_special_tokens are special, and only the first entries count."""
    file = json.loads(path.read_text(encoding="utf-8"))
    config = file["config"]
    offset = config["default_num_special_tokens"]
    count = config["default_vocab_size"] - offset
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in file["vocab"][:count]}
    return Unnamed(ranks, config["pattern"], {}, offset)


def tiktoken_judge(path):
    ranks = {}
    for line in path.read_bytes().splitlines():
        if line:
            piece, rank = line.split()
            ranks[base64.b64decode(piece)] = int(rank)
    if len(ranks) not in TIKTOKENS:
        raise ValueError(f"{path}: no pattern is known for {len(ranks)} ranks")
    pattern, tokens = TIKTOKENS[len(ranks)]
    special = {content: len(ranks) + i for i, content in enumerate(tokens)}
    return Tiktoken(ranks, pattern, special, 0) if special else Unnamed(ranks, pattern, {}, 0)


def has_tokenizer(folder):
    files = ("tokenizer.json", "tekken.json", "tokenizer.model")
    return any((folder / file).exists() for file in files) or any(folder.glob("*.tiktoken"))


def named_tokens(file):
    """What a tokenizer_config.json or special_tokens_map.json names as special tokens."""
    fields = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    values = [value for key, value in fields.items() if key.endswith("_token") and not key.startswith("add_")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = fields.get(key) or []
        values += more if isinstance(more, list) else more.values()
    return {value["content"] if isinstance(value, dict) else value for value in values if value}


def judge_of(folder):
    """The judge of a model's folder, in which has_tokenizer finds one."""
    if (folder / "tokenizer.json").exists():
        judge = HuggingFace(folder)
        config, special_map = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
        named = named_tokens(config) | named_tokens(special_map)
        listed = config.exists() and "added_tokens_decoder" in json.loads(config.read_text(encoding="utf-8"))
        in_vocabulary = all(judge.tokenizer.token_to_id(content) is not None for content in named)
        return transformers_judge(folder) if listed or not in_vocabulary else judge
    if (folder / "tekken.json").exists():
        return tekken_judge(folder / "tekken.json")
    model = folder / "tokenizer.model"
    if model.exists():  # of SentencePiece, or of tiktoken, as Llama's own folders have it
        return tiktoken_judge(model) if b" " in model.read_bytes()[:64].split(b"\n")[0] else SentencePiece(folder)
    return tiktoken_judge(min(folder.glob("*.tiktoken")))
