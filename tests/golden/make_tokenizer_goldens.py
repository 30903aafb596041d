#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/ with Hugging Face's `tokenizers` (made with version 0.23.3), the judge of our tokenizer.

Each golden tokenizer is a small byte-level BPE in the style of a published family, trained on text made here:
  NAME/tokenizer.json, NAME/tokenizer_config.json   what a model's folder would hold
  NAME/golden.json                                  what `tokenizers` makes of texts.json, and of random ids
  texts.json                                        the texts, as strings or as bytes in hex that are not UTF-8
  variants.json                                     changes to base/tokenizer.json (JSON merge patches), with goldens each
"""
import random

from tokenizers import Regex, normalizers, pre_tokenizers

from tokenizer_parts import DEEPSEEK, LLAMA3, OUT, QWEN2, added, byte_level, golden, template, train, write
from tokenizer_texts import make_texts
from tokenizer_variants import VARIANT_TEXTS, make_variants


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
