#!/usr/bin/env python3
"""Makes small random checkpoints and what Hugging Face transformers computes from them (see README.md).

  make_transformers_goldens.py [--out transformers] [--only CASE ...]

Every expectation is computed from the saved folder, loaded again, with eager attention, on the CPU with one thread.
A seed is refused, and the next one taken, unless the case is a good test: the greedy tokens have a clear lead at every
step and are not all the same, and the case's feature changes the logits.
"""

import argparse
import copy
import json
import math
import pathlib
import re
import shutil

import numpy
import safetensors
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import transformers_published
from transformers_cases import CASES, FAMILIES, VOCABULARY

PROMPT_LENGTHS = [1, 2, 17, 33, 64, 129, 300]
POSITIONS = [0, 1, 2, 15, 16, 31, 32, 33, 63, 64, 127, 128, 200, 255, 299]
GREEDY_PROMPTS = [17, 129]
GREEDY_TOKENS = 64
SMALLEST_LEAD = 1e-3  # of the largest logit of that step; exact mode is asked for 1e-4
FEWEST_DIFFERENT = 24  # among the greedy tokens of a prompt
SMALLEST_CHANGE = 0.05  # of the largest logit, at half of the positions, if a feature is switched off
MOST_SEEDS = 100


def make_config(case, **changes):
    family = FAMILIES[case.family]
    config = family.config(**copy.deepcopy({**family.base, **case.config, **changes}))
    config._attn_implementation = "eager"
    return config


def new_model(case, config):
    torch.manual_seed(0)
    return adjust(case, FAMILIES[case.family].auto.from_config(config, attn_implementation="eager"))


def load(case, folder, dtype):
    model = FAMILIES[case.family].auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return adjust(case, model)


def adjust(case, model):
    """Makes longrope rotate by the long factors whatever the length is, if the case asks for it."""
    for module in model.modules():
        if case.long_rope and getattr(module, "rope_type", None) == "longrope":
            original = module.config.rope_parameters["original_max_position_embeddings"]
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, None, seq_len=original + 1)
            module.original_inv_freq.copy_(frequencies)  # what short sequences are rotated by
    return model.eval()


def make_model(case, seed):
    """Random weights, large enough that attention is peaked and logits lie far apart."""
    model = new_model(case, make_config(case))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        module = model.get_submodule(name.rpartition(".")[0])
        parameter.data.copy_(random_values(case, model, name, module, noise))
    return model.to(case.dtype)


def random_values(case, model, name, module, noise):
    if name.endswith("bias"):
        return case.bias * noise
    if "Norm" in type(module).__name__:
        center = case.head_norm if ".q_norm." in name or ".k_norm." in name else 1.0
        return center - (1.0 if FAMILIES[case.family].one_plus else 0.0) + 0.2 * noise
    if "embed_positions" in name or ".wpe." in name:
        return 0.5 * noise
    if isinstance(module, torch.nn.Embedding):
        # Tied, a token's own embedding would win every step if the layers did not outweigh it.
        return (case.embedding or (0.2 if model.config.get_text_config().tie_word_embeddings else 1.0)) * noise
    if noise.dim() == 1:  # of a vision tower
        return noise
    peaked = any(part in name for part in (".q_proj.", ".k_proj.", "qkv_proj", "query_key_value", "c_attn"))
    gain = 1.6 if peaked else 3.0 if name.startswith("lm_head") else 1.2
    inputs = noise.shape[0] if type(module).__name__ == "Conv1D" else noise.shape[1]
    return gain / math.sqrt(inputs) * noise


def save(model, case, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=case.shard_size)
    transformers_published.publish(folder, case)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)


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
        if smallest_lead < SMALLEST_LEAD:
            break
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], smallest_lead


def generate_agrees(model, prompt, tokens):
    """True if transformers' own generate(), which keeps a KV cache, continues the same."""
    ids = torch.tensor([prompt])
    row = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=GREEDY_TOKENS,
                         eos_token_id=-1, pad_token_id=0)[0]
    return row[len(prompt):].tolist() == tokens


def logits_with(case, model, ids, **changes):
    """Of the same weights and another configuration."""
    other = new_model(case, make_config(case, **changes))
    other.load_state_dict(model.state_dict(), strict=False)
    return logits_of(other, ids)


def logits_with_neutral(case, model, ids, pattern, value):
    other = copy.deepcopy(model)
    found = [parameter for name, parameter in other.named_parameters() if re.search(pattern, name)]
    if not found:
        raise RuntimeError(f"no weight is called {pattern}")
    for parameter in found:
        parameter.data.fill_(value)
    return logits_of(other, ids)


def why_features_do_not_matter(case, model, ids, logits):
    """Which feature changes the logits too little if it is switched off, or ""."""
    window = getattr(model.config.get_text_config(), "sliding_window", None) or 0
    smallest = SMALLEST_CHANGE * float(logits.abs().max())
    for changes in case.without if isinstance(case.without, list) else [case.without]:
        changed = (logits_with(case, model, ids, **changes) - logits).abs().amax(dim=1)
        if list(changes) == ["sliding_window"] and float(changed[:window].max()) > 1e-4:
            raise RuntimeError("the sliding window changed positions that see everything")
        seen = window + 1 if window < len(ids) // 2 else 1
        if float(changed[seen:].median()) < smallest:
            return f"without {changes}, logits change by only {float(changed[seen:].median()):.2g}"
    for pattern, value in case.neutral.items():
        changed = (logits_with_neutral(case, model, ids, pattern, value) - logits).abs().amax(dim=1)
        if float(changed.median()) < smallest:
            return f"with {pattern} = {value}, logits change by only {float(changed.median()):.2g}"
    if case.same is not None and not torch.equal(logits_with(case, model, ids, **case.same), logits):
        raise RuntimeError(f"{case.same} changes logits")
    return ""


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


def plain_fields(config):
    """What a configuration says, less what says where it comes from."""
    if not isinstance(config, dict):
        return config
    return {key: plain_fields(value) for key, value in config.items()
            if key not in ("type", "dtype", "architectures", "transformers_version", "_name_or_path",
                           "_sliding_window_pattern")}


def check_saved(case, folder):
    """What was saved is what was meant, also where config.json was rewritten; it may say more."""
    loaded, meant = transformers.AutoConfig.from_pretrained(folder), make_config(case)
    read, wanted = plain_fields(loaded.to_dict()), plain_fields(meant.to_dict())
    differ = {key: (read.get(key), value) for key, value in wanted.items()
              if not agree(read.get(key), value) and key not in case.omit_of_wrapper}
    if differ:
        raise RuntimeError(f"{folder}: config.json says {differ}")
    if case.family == "llama":
        check_bands(loaded)


def check_loaded(made, model):
    """No weight is lost or tied that was meant to be another."""
    loaded = model.state_dict()
    for name, tensor in made.state_dict().items():
        if not torch.equal(loaded[name], tensor.float()):
            raise RuntimeError(f"{name} is not what was saved")


def agree(read, wanted):
    if isinstance(wanted, dict) and isinstance(read, dict):
        return all(agree(read.get(key), value) for key, value in wanted.items())
    return read == wanted


def write_floats(path, logits):
    path.write_bytes(logits.contiguous().numpy().astype("<f4").tobytes())
    return {"file": path.name, "shape": list(logits.shape)}


def bf16_goldens(case, folder):
    """Reference: weights rounded to bf16, then float32 arithmetic. Error: of transformers' own bf16 run against it."""
    model = load(case, folder, torch.bfloat16)
    own = logits_of(model, PROMPT)[POSITIONS]
    reference = load(case, folder, torch.float32)
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
    made = make_model(case, seed)
    save(made, case, folder)
    check_saved(case, folder)
    model = load(case, folder, torch.float32)
    check_loaded(made, model)
    logits = logits_of(model, PROMPT)
    reason = why_features_do_not_matter(case, model, PROMPT, logits)
    if reason:
        return reason
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
        "bf16": bf16_goldens(case, folder),
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
