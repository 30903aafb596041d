"""The cases of make_odd_goldens.py, which says what their fields are."""

import json

from tokenizer_parts import byte_level, sequence, split


def config(**fields):
    return {"tokenizer_config.json": json.dumps(fields)}


def special_map(**fields):
    return {"special_tokens_map.json": json.dumps(fields)}


def typed(content, **flags):
    return {"__type": "AddedToken", "content": content, **flags}


def token(token_id, content, **flags):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


def listed(content, **flags):
    return {key: value for key, value in token(0, content, **flags).items() if key != "id"}


def model_type(name, **fields):
    return {"config.json": json.dumps({"model_type": name, **fields})}


BYTE_LEVEL = {"pre_tokenizer": {"use_regex": True}}
END_OF_TEXT = {"model": {"vocab": {"<|endoftext|>": 1000, "<|im_end|>": 1001, "<|padding|>": 1002}}, **BYTE_LEVEL}

# Two sources for one fact: names and tokens.
NAMES = {
    "additional_in_both": {"files": config(additional_special_tokens=["<a>"]) | special_map(
        additional_special_tokens=["<b>"])},
    "additional_in_map": {"files": config() | special_map(additional_special_tokens=["<b>", "<a>"])},
    "extra_empty_list_hides_the_map": {"files": config(extra_special_tokens=[]) | special_map(
        additional_special_tokens=["<b>"])},
    "extra_null_hides_the_map": {"files": config(extra_special_tokens=None) | special_map(
        additional_special_tokens=["<b>"])},
    "extra_empty_object_does_not": {"files": config(extra_special_tokens={}) | special_map(
        additional_special_tokens=["<b>"])},
    "extra_empty_object_and_additional": {"files": config(extra_special_tokens={}, additional_special_tokens=["<a>"])},
    "extra_empty_list_and_additional": {"files": config(extra_special_tokens=[], additional_special_tokens=["<a>"])},
    "extra_object_and_additional": {"files": config(extra_special_tokens={"z_token": "<d>", "a_token": "<c>"},
                                                    additional_special_tokens=["<a>"])},
    "extra_list_and_additional": {"files": config(extra_special_tokens=["<b>"], additional_special_tokens=["<a>"])},
    "extra_in_both": {"files": config(extra_special_tokens=["<b>"]) | special_map(
        extra_special_tokens=[{"content": "<a>", "lstrip": True}, "<b>"])},
    "extra_object_in_map_over_a_list": {"files": config(extra_special_tokens=["<b>"]) | special_map(
        extra_special_tokens={"d_token": "<d>"})},
    "own_names_in_order_of_the_file": {"files": config(
        zz_token="<d>", eos_token="<b>", aa_token="<a>", mm_token="<c>")},
    "own_names_typed_come_first": {"files": config(zz_token="<d>", aa_token=typed("<a>", lstrip=True))},
    "own_names_in_both": {"files": config(zz_token="<d>", aa_token="<a>") | special_map(
        cc_token="<c>", aa_token={"content": "<b>"})},
    "own_name_not_typed": {"files": config(aa_token={"content": "<a>"})},
    "map_null_takes_away": {"files": config(bos_token="<a>", eos_token="<b>") | special_map(bos_token=None)},
    "map_after_null": {"files": config(bos_token=None, eos_token="<b>") | special_map(bos_token="<a>")},
    "list_hides_the_map": {"files": config(added_tokens_decoder={}, bos_token="<a>") | special_map(
        bos_token="<b>", eos_token="<c>")},
    "named_twice": {"files": config(bos_token="<a>", eos_token="<a>", pad_token=typed("<a>"))},
    "named_twice_with_other_flags": {"files": config(
        bos_token="<|end|>", eos_token="<a>", pad_token=None, image_token=typed("<a>", single_word=True, lstrip=True))},
    "extra_twice_with_other_flags": {"files": config(extra_special_tokens=["<c>", "<d>"]) | special_map(
        extra_special_tokens=[{"content": "<c>", "lstrip": True}])},
    "own_null_keeps_its_place": {"files": config(image_token=None, eos_token="<c>") | special_map(
        aa_token="<b>", zz_token={"content": "<d>"}, image_token="<a>")},
    "own_null_in_the_map": {"files": config(image_token="<a>", aa_token=typed("<b>")) | special_map(
        image_token=None, aa_token=None)},
    "named_in_the_json": {"patch": {"added_tokens": [token(1000, "<a>"), token(1001, "<b>", rstrip=True)]},
                          "files": config(pad_token="<a>", image_token="<b>")},
    "named_in_the_json_beside_a_list": {"patch": {"added_tokens": [token(1000, "<a>")]},
                                        "files": config(pad_token="<a>", added_tokens_decoder={})},
    "named_empty": {"files": config(bos_token="", eos_token="<a>")},
    "typed_without_flags": {"files": config(eos_token=typed("<a>"), additional_special_tokens=[
        typed("<b>"), typed("<c>", special=True)])},
    "eos_is_a_word": {"files": config(eos_token="the")},
}

# Lists of added tokens.
LISTS = {
    "decoder_with_own_names": {"files": config(added_tokens_decoder={"1000": listed("<a>"), "1001": listed("<b>")},
                                               image_token="<a>", additional_special_tokens=["<b>"])},
    "decoder_out_of_order": {"files": config(added_tokens_decoder={
        "1001": listed("<b>", special=True), "1000": listed("<a>", special=True)})},
    "decoder_with_a_gap": {"files": config(added_tokens_decoder={
        "1000": listed("<a>"), "1005": listed("<b>", special=True)})},
    "decoder_against_the_json": {"patch": {"added_tokens": [token(1000, "<a>", special=True)]}, "files": config(
        added_tokens_decoder={"1000": listed("<a>", lstrip=True), "1001": listed("<b>")})},
    "decoder_numbers_otherwise": {"patch": {"added_tokens": [token(1000, "<a>"), token(1001, "<b>")]}, "files": config(
        added_tokens_decoder={"1000": listed("<b>"), "1001": listed("<a>")})},
    "decoder_empty_content": {"files": config(added_tokens_decoder={"1000": listed(""), "1001": listed("<a>")})},
    "decoder_few_fields": {"files": config(added_tokens_decoder={
        "1000": {"content": "<a>"}, "1001": {"content": "<b>", "special": True, "rstrip": True}})},
    "added_file": {"files": config() | {"added_tokens.json": '{"<b>": 1001, "<a>": 1000}'}},
    "added_file_special_by_list": {"files": config(additional_special_tokens=["<a>"]) | special_map(
        eos_token="<b>") | {"added_tokens.json": '{"<b>": 1001, "<a>": 1000, "<c>": 1002}'}},
    "added_file_special_by_map": {"files": config() | special_map(additional_special_tokens=["<a>"]) | {
        "added_tokens.json": '{"<a>": 1000, "<c>": 1001}'}},
    "added_file_hidden": {"files": config(added_tokens_decoder={}) | {"added_tokens.json": '{"<a>": 1000}'}},
    "added_file_against_the_json": {"patch": {"added_tokens": [token(1000, "<d>"), token(1001, "<a>")]},
                                    "files": config(aa_token="<b>") | {
                                        "added_tokens.json": '{"<c>": 1000, "<b>": 1002}'}},
    "added_file_empty": {"files": config() | {"added_tokens.json": "{}"}},
    "json_twice": {"patch": {"added_tokens": [
        token(1000, "<a>"), token(1001, "<b>", special=True), token(1000, "<a>")]}, "by": "tokenizers"},
    "json_twice_other_flags": {"patch": {"added_tokens": [token(1000, "<a>"), token(1000, "<a>", special=True)]},
                               "by": "tokenizers"},
    "json_twice_special_first": {"patch": {"added_tokens": [
        token(1000, "<a>", special=True), token(1000, "<a>", lstrip=True)]}, "by": "tokenizers"},
    "json_gap": {"patch": {"added_tokens": [token(1000, "<a>"), token(1007, "<b>", special=True)]}, "by": "tokenizers"},
    "json_order": {"patch": {"added_tokens": [token(1002, "<c>"), token(1000, "<a>"), token(1001, "<b>")]},
                   "by": "tokenizers"},
    "json_in_vocabulary": {"patch": {"added_tokens": [token(1000, "the"), token(1001, "<a>")]}, "by": "tokenizers"},
    "json_empty_content": {"patch": {"added_tokens": [token(1000, ""), token(1000, "<a>")]}, "by": "tokenizers"},
}

# What is empty, and what is missing.
EMPTY = {
    "no_version": {"patch": {"version": None, "truncation": None, "padding": None}},
    "no_model_type": {"patch": {"model": {"type": None}}},
    "no_flags_of_the_model": {"patch": {"model": {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": None, "byte_fallback": None, "ignore_merges": None}}},
    "flags_of_the_model_null": {"set": {
        "model/" + name: None for name in ("fuse_unk", "byte_fallback", "ignore_merges")}, "by": "tokenizers"},
    "subwords_empty": {"set": {"model/continuing_subword_prefix": "", "model/end_of_word_suffix": ""}},
    "unk_empty": {"set": {"model/unk_token": ""}},
    "dropout_zero": {"set": {"model/dropout": 0.0}},
    "merges_empty": {"set": {"model/merges": []}},
    "merges_as_texts": {"set": {"model/merges": ["t h", "#version: 0.2", "th e"]}},
    "no_added_tokens": {"patch": {"added_tokens": None}, "by": "tokenizers"},
    "added_tokens_null": {"set": {"added_tokens": None}, "by": "tokenizers"},
    "no_steps": {"patch": {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}},
    "steps_null": {"set": {name: None for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}},
    "sequences_empty": {"set": {
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": []},
        "post_processor": {"type": "Sequence", "processors": []},
        "decoder": {"type": "Sequence", "decoders": []}}},
    "template_empty": {"set": {"post_processor": {
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {}}}},
    "config_empty_object": {"files": {"tokenizer_config.json": "{}"}},
    "map_of_nulls": {"files": config(eos_token="<a>") | special_map(
        bos_token=None, eos_token=None, pad_token=None, additional_special_tokens=None)},
    "lists_of_nothing": {"files": config(additional_special_tokens=[], extra_special_tokens=[], eos_token="<a>")},
}
for section in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
    for kind, value in (("object", {}), ("text", ""), ("list", []), ("false", False), ("zero", 0)):
        EMPTY[f"{section}_empty_{kind}"] = {"set": {section: value}}
for file in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
    for kind, text in (("file", ""), ("list", "[]"), ("null", "null"), ("broken", '{"a": ')):
        EMPTY[f"{file.replace('.', '_')}_{kind}"] = {"files": {file: text}}

# vocab.json and merges.txt, and what the classes know beside the files.
CLASSES = {
    "files_gpt2": {"patch": END_OF_TEXT, "split": True, "files": config(tokenizer_class="GPT2Tokenizer")},
    "files_gpt2_prefix": {"patch": END_OF_TEXT, "split": True, "files": config(
        tokenizer_class="GPT2Tokenizer", add_prefix_space=True)},
    "files_opt": {"patch": {"model": {"vocab": {"<s>": 1000, "</s>": 1001, "<unk>": 1002}}}, "split": True,
                  "files": model_type("opt") | config(
                      tokenizer_class="GPT2Tokenizer", add_bos_token=True, bos_token=typed("</s>"),
                      eos_token=typed("</s>"), unk_token=typed("</s>"), pad_token=typed("<s>"))},
    "files_by_model_type": {"patch": END_OF_TEXT, "split": True, "files": model_type("gpt2")},
    "files_gpt2_map": {"patch": END_OF_TEXT, "split": True, "files": model_type("gpt2") | special_map(
        bos_token="<|endoftext|>", eos_token="<|im_end|>", unk_token="<|endoftext|>")},
    "files_qwen2": {"patch": {"model": {"vocab": {}}}, "split": True, "files": model_type("qwen2") | config(
        tokenizer_class="Qwen2Tokenizer", bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        added_tokens_decoder={"1000": listed("<|endoftext|>", special=True),
                              "1001": listed("<|im_start|>", special=True),
                              "1002": listed("<|im_end|>", special=True)})},
    "files_qwen2_added_file": {"split": True, "files": model_type("qwen2") | config(
        tokenizer_class="Qwen2Tokenizer") | {"added_tokens.json": '{"<|endoftext|>": 1000, "<|im_end|>": 1001}'}},
    "files_neox": {"patch": END_OF_TEXT, "split": True, "files": model_type("gpt_neox") | config(
        tokenizer_class="GPTNeoXTokenizer")},
    "files_codegen": {"patch": END_OF_TEXT, "split": True, "files": config(tokenizer_class="CodeGenTokenizer")},
    "class_gpt2": {"patch": END_OF_TEXT, "files": config(tokenizer_class="GPT2Tokenizer")},
    "class_gpt2_by_model_type": {"patch": END_OF_TEXT, "files": model_type("gpt2") | config()},
    "class_gpt2_bos_null": {"patch": END_OF_TEXT, "files": config(tokenizer_class="GPT2TokenizerFast", bos_token=None)},
    "class_fast": {"patch": END_OF_TEXT, "files": config(tokenizer_class="PreTrainedTokenizerFast")},
    "class_unknown": {"patch": END_OF_TEXT, "files": config(tokenizer_class="NoSuchTokenizer")},
    "class_llama_byte_level": {"patch": END_OF_TEXT, "files": config(tokenizer_class="LlamaTokenizer")},
    "class_of_mistral_overruled": {"patch": END_OF_TEXT, "files": model_type("mistral") | config(
        tokenizer_class="GPT2Tokenizer")},
    "class_of_the_model": {"patch": END_OF_TEXT,
                           "files": model_type("llama", tokenizer_class="GPT2Tokenizer") | config()},
}

# Patterns that PCRE2 reads otherwise than Oniguruma. What they match is left out.
PATTERN_TEXTS = ["", "a", "aaab", "xaab xaaa xa", "12345 678x", "abc ABC \u00e9\u00c9", "\u6587\u5b57abc\u6f22",
                 "bbb--&^x", "a-b_c [d]", "\n\n a\t1", "\u2167\u00b2\u0661x", "zyxcba"]
PATTERNS = {
    "pattern_" + name: {"set": {"pre_tokenizer": sequence(split(pattern, "Removed"), byte_level())},
                        "texts": PATTERN_TEXTS, "by": "tokenizers"}
    for name, pattern in {
        "interval_plus": r"\d{1,3}+", "interval_plus_then": r"[a-z]{2}+x", "interval_optional": r"xa{2}?",
        "interval_lazy": r"xa{2,3}?", "interval_without_minimum": r"a{,2}",
        "interval_of_a_group": r"(a|[^b]){2}+[\d]{,2}+",
        "possessive": r"\p{N}?+[ab]++", "intersection": r"[a-z&&[^b]]", "intersection_negated": r"[^a-z&&[^b]]",
        "intersection_of_properties": r"[\p{L}&&[^\p{Han}]]+", "intersection_of_three": r"[a-z&&b-y&&c-x]+",
        "intersection_of_unions": r"[a-c&&[b-d[x]]]", "negated_in_a_class": r"[a[^b]]",
        "negated_in_negated": r"[^a[^bx]]+",
        "negated_twice": r"[[^a]&&[^b]]+", "behind": r"(?<=[a[^b]])x", "case": r"(?i:[a-z&&[^b]])+",
        "cl100k": r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)",
    }.items()
}

# Which class is taken, by the type of the model and the class that the files name.
ALL_DEFAULTS = ["<|endoftext|>", "<|padding|>", "<s>", "</s>", "<unk>", "<bos>", "<eos>", "<pad>", "<mask>",
                "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"]
MODEL_TYPES = ["llama", "mistral", "ministral", "ministral3", "mistral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3",
               "gemma3_text", "phi3", "granite", "smollm3", "olmo", "olmo2", "olmo3", "opt", "glm", "glm4", "cohere",
               "cohere2", "exaone4", "nemotron", "starcoder2", "seed_oss", "gpt2", "gpt_neox", "phi"]
CHOICES = {
    f"choice_{kind}_{name}": {
        "patch": {"model": {"vocab": {text: 1000 + i for i, text in enumerate(ALL_DEFAULTS)}}, **BYTE_LEVEL},
        "files": model_type(kind) | config(**({"tokenizer_class": name} if name != "none" else {})), "names_only": True}
    for kind in MODEL_TYPES
    for name in ["none", "GPT2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizerFast", "GemmaTokenizer"]
    if name == "none" or kind in ("llama", "qwen2", "mistral", "gemma", "exaone4", "smollm3", "gpt2")
}

CASES = NAMES | LISTS | EMPTY | CLASSES | CHOICES | PATTERNS
