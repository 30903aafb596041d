#!/usr/bin/env python3
"""Makes small random checkpoints and what Hugging Face transformers computes from them (see README.md).

  make_transformers_goldens.py [--out transformers] [--only CASE ...]

Every expectation is computed from the saved folder, loaded again, with eager attention, on the CPU with one thread.
A seed is refused, and the next one taken, unless the case is a good test: the greedy tokens have a clear lead at every
step and are not all the same, and the case's feature changes the logits.
"""

import argparse
import copy
import dataclasses
import json
import math
import pathlib
import shutil

import numpy
import safetensors
import torch
import transformers

VOCABULARY = 128
PROMPT_LENGTHS = [1, 2, 17, 33, 64, 129, 300]
POSITIONS = [0, 1, 2, 15, 16, 31, 32, 33, 63, 64, 127, 128, 200, 255, 299]
GREEDY_PROMPTS = [17, 129]
GREEDY_TOKENS = 64
SMALLEST_LEAD = 1e-3  # of the largest logit of that step; exact mode is asked for 1e-4
FEWEST_DIFFERENT = 24  # among the greedy tokens of a prompt
MOST_SEEDS = 100


@dataclasses.dataclass
class Case:
    """What differs from the base model; `without` are the config fields that switch the feature off."""

    about: str
    config: dict = dataclasses.field(default_factory=dict)
    without: dict | None = None
    family: str = "llama"
    dtype: torch.dtype = torch.float32
    shard_size: str = "1GB"
    old_config: bool = False  # config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype


BASE = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=False)


def heads(query, key_value, size, **more):
    return dict(num_attention_heads=query, num_key_value_heads=key_value, head_dim=size, **more)


def rope(theta, **more):
    return dict(rope_parameters=dict(dict(rope_type="default"), rope_theta=theta, **more))


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)

CASES = {
    "mha": Case("as many KV heads as query heads", heads(3, 3, 32)),
    "gqa": Case("two query heads share a KV head"),
    "mqa": Case("one KV head", heads(4, 1, 32)),
    "tied": Case("the head is the embedding", dict(tie_word_embeddings=True)),
    "rope_linear": Case("rope scaling linear", rope(10000.0, rope_type="linear", factor=4.0), rope(10000.0),
                        old_config=True),
    "rope_llama3": Case("rope scaling llama3, beyond the original context of 64", rope(10000.0, **LLAMA3),
                        rope(10000.0)),
    "sliding_window": Case("a query sees 32 tokens, itself included", dict(rope(1e6), sliding_window=32),
                           dict(sliding_window=None), family="mistral", old_config=True),
    "biases": Case("bias on q, k, v, o and on the MLP", dict(attention_bias=True, mlp_bias=True),
                   dict(attention_bias=False, mlp_bias=False)),
    "head_32": Case("three query heads of 32 a KV head", heads(3, 1, 32)),
    "head_48": Case("head size 48", heads(2, 1, 48)),
    "head_64": Case("head size 64, theta 500000", dict(heads(2, 1, 64), **rope(500000.0)), rope(10000.0),
                    old_config=True),
    "head_80": Case("head size 80", heads(2, 1, 80)),
    "head_96": Case("head size 96", heads(2, 1, 96, hidden_size=32)),
    "head_128": Case("head size 128, rope scaling llama3",
                     dict(heads(2, 1, 128, hidden_size=32), **rope(500000.0, **LLAMA3)), rope(500000.0), old_config=True),
    "head_256": Case("head size 256", heads(2, 1, 256, hidden_size=32, intermediate_size=48)),
    "sharded": Case("several safetensors files and an index", shard_size="100KB"),
    "bf16": Case("weights stored as bf16", dtype=torch.bfloat16),
    "f16": Case("weights stored as f16", dtype=torch.float16),
}


def make_config(case, **changes):
    family = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig}[case.family]
    config = family(**copy.deepcopy({**BASE, **rope(10000.0), **case.config, **changes}))
    config._attn_implementation = "eager"
    return config


def make_model(case, seed):
    """Random weights, large enough that attention is peaked and logits lie far apart."""
    model = new_model(make_config(case))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif name.startswith("model.embed_tokens"):
            # Tied, a token's own embedding would win every step if the layers did not outweigh it.
            value = (0.2 if case.config.get("tie_word_embeddings") else 1.0) * noise
        else:
            gain = 1.6 if ".q_proj." in name or ".k_proj." in name else 3.0 if name.startswith("lm_head") else 1.2
            value = gain / math.sqrt(parameter.shape[1]) * noise
        parameter.data.copy_(value)
    return model.to(case.dtype)


def new_model(config):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def save(model, case, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=case.shard_size)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    if case.old_config:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        parameters = config.pop("rope_parameters")
        config["rope_theta"] = parameters.pop("rope_theta")
        if parameters["rope_type"] == "linear":  # the oldest spelling
            parameters["type"] = parameters.pop("rope_type")
        config["rope_scaling"] = None if parameters == {"rope_type": "default"} else parameters
        config["torch_dtype"] = config.pop("dtype")
        path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def logits_of(model, ids):
    """Logits [tokens, vocabulary] in float32 of one run over all ids."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, prompt):
    """The next tokens (end-of-sequence is a token like any other) and the smallest lead over the runner-up."""
    ids, smallest_lead = list(prompt), math.inf
    for _ in range(GREEDY_TOKENS):
        last = logits_of(model, ids)[-1]
        best = last.topk(2)
        smallest_lead = min(smallest_lead, float((best.values[0] - best.values[1]) / last.abs().max()))
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], smallest_lead


def generate_agrees(model, prompt, tokens):
    """True if transformers' own generate(), which keeps a KV cache, continues the same."""
    ids = torch.tensor([prompt])
    row = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=GREEDY_TOKENS,
                         eos_token_id=-1, pad_token_id=0)[0]
    return row[len(prompt):].tolist() == tokens


def feature_matters(case, model, ids, logits):
    """True if the same weights without the feature give other logits somewhere."""
    if case.without is None:
        return True
    plain = new_model(make_config(case, **case.without))
    plain.load_state_dict(model.state_dict(), strict=False)
    changed = (logits_of(plain, ids) - logits).abs().amax(dim=1)
    window = model.config.sliding_window if case.family == "mistral" else 0
    if window and float(changed[:window].max()) > 1e-4:
        raise RuntimeError("the sliding window changed positions that see everything")
    return float(changed[window + 1:].median()) > 0.05 * float(logits.abs().max())


def check_bands(config):
    """llama3 scaling has three frequency bands; a test that lacks one is none."""
    parameters = config.rope_parameters
    if parameters["rope_type"] != "llama3":
        return
    original = parameters["original_max_position_embeddings"]
    lengths = [2 * math.pi * parameters["rope_theta"] ** (2 * i / config.head_dim) for i in range(config.head_dim // 2)]
    high, low = original / parameters["high_freq_factor"], original / parameters["low_freq_factor"]
    bands = [sum(n < high for n in lengths), sum(high <= n <= low for n in lengths), sum(n > low for n in lengths)]
    if 0 in bands or max(PROMPT_LENGTHS) <= original:
        raise RuntimeError(f"frequency bands {bands}")


def check_saved(case, folder):
    """What was saved is what was meant, also where config.json was rewritten."""
    loaded, meant = transformers.AutoConfig.from_pretrained(folder), make_config(case)
    read = {key: value for key, value in loaded.rope_parameters.items() if key != "type"}
    if read != meant.rope_parameters:
        raise RuntimeError(f"{folder}: rope {read}, not {meant.rope_parameters}")
    check_bands(loaded)


def write_floats(path, logits):
    path.write_bytes(logits.contiguous().numpy().astype("<f4").tobytes())
    return {"file": path.name, "shape": list(logits.shape)}


def bf16_goldens(folder):
    """Reference: weights rounded to bf16, then float32 arithmetic. Error: of transformers' own bf16 run against it."""
    model = load(folder, torch.bfloat16)
    own = logits_of(model, PROMPT)[POSITIONS]
    reference = load(folder, torch.float32)
    for parameter in reference.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    expected = logits_of(reference, PROMPT)[POSITIONS]
    error = (own - expected).double()
    return {
        "reference": write_floats(folder / "logits_f32_of_bf16_weights.f32", expected),
        "transformers_rms_error": float(error.square().mean().sqrt()),
        "transformers_max_error": float(error.abs().max()),
    }


def try_case(name, case, seed, folder):
    """Writes the case's folder; returns why the seed is no good, or ""."""
    save(make_model(case, seed), case, folder)
    check_saved(case, folder)
    model = load(folder, torch.float32)
    logits = logits_of(model, PROMPT)
    if not feature_matters(case, model, PROMPT, logits):
        return "the feature changes too little"
    continuations = []
    for length in GREEDY_PROMPTS:
        tokens, lead = greedy(model, PROMPT[:length])
        if lead < SMALLEST_LEAD:
            return f"a lead of only {lead:.1e}"
        if len(set(tokens)) < FEWEST_DIFFERENT:
            return f"only {len(set(tokens))} different tokens"
        if not generate_agrees(model, PROMPT[:length], tokens):
            raise RuntimeError(f"{name}: generate() disagrees with greedy()")
        continuations.append({"prompt_length": length, "token_ids": tokens, "smallest_lead": lead})
    goldens = {
        "case": name, "about": case.about, "seed": seed,
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, safetensors, numpy)},
        "prompt_ids": PROMPT, "prompt_lengths": PROMPT_LENGTHS, "positions": POSITIONS,
        "logits": write_floats(folder / "logits.f32", logits[POSITIONS]),
        "largest_logit": float(logits[POSITIONS].abs().max()),
        "greedy": continuations,
        "bf16": bf16_goldens(folder),
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in goldens.items())
    (folder / "goldens.json").write_text("{\n" + lines + "\n}\n")
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "transformers")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with torch.inference_mode():
        for name in arguments.only:
            folder = arguments.out / name
            for seed in range(1, MOST_SEEDS + 1):
                reason = try_case(name, CASES[name], seed, folder)
                if not reason:
                    break
                print(f"{name}: seed {seed}: {reason}", flush=True)
            else:
                raise RuntimeError(f"{name}: no seed is good")
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"{name}: seed {seed}, {size / 1024:.0f} KiB", flush=True)


PROMPT = numpy.random.default_rng(20240311).integers(3, VOCABULARY, max(PROMPT_LENGTHS)).tolist()

if __name__ == "__main__":
    main()
