"""Gives saved checkpoints the form that published ones have where transformers 5 itself saves another one."""

import json
import re

import safetensors.torch


def as_transformers_4(config):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling, torch_dtype."""
    config = dict(config)
    parameters = config.pop("rope_parameters", None)
    nested = parameters and "full_attention" in parameters
    if nested:
        # Gemma 3 and OLMo 3: rope_theta and rope_scaling are those of the full layers. Gemma's windowed layers have a
        # theta of their own, rope_local_base_freq; OLMo's have rope_theta, without the scaling.
        if config["model_type"].startswith("gemma3"):
            config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    if parameters:
        parameters = dict(parameters)
        neox = config["model_type"] == "gpt_neox"
        config["rotary_emb_base" if neox else "rope_theta"] = parameters.pop("rope_theta")
        if "partial_rotary_factor" in parameters:
            config["rotary_pct" if neox else "partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
        if not nested and parameters["rope_type"] in ("linear", "longrope"):  # the oldest spelling
            parameters["type"] = parameters.pop("rope_type")
        if "original_max_position_embeddings" in config:  # Phi-3 has it at the top alone
            parameters.pop("original_max_position_embeddings", None)
        if not neox:
            config["rope_scaling"] = None if parameters == {"rope_type": "default"} else parameters
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


def write_config(folder, case):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    wrapped = "text_config" in config
    text = config["text_config"] if wrapped else config
    if case.old_config:
        text = as_transformers_4(text)
    text = {key: value for key, value in text.items() if key not in case.omit} | case.extra
    if wrapped:
        text.pop("torch_dtype", None)  # the wrapper has it
        config["text_config"] = dict(sorted(text.items()))
        config["vision_config"].pop("dtype", None)
        if case.old_config:
            config["torch_dtype"] = config.pop("dtype")
        for key in case.omit_of_wrapper:
            config.pop(key)
        text = config
    path.write_text(json.dumps(dict(sorted(text.items())), indent=2) + "\n")


def rename_tensors(folder, case):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for pattern, replacement in case.rename:
        if not any(re.search(pattern, name) for name in tensors):
            raise RuntimeError(f"{path}: no tensor is called {pattern}")
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors | case.tensors, path, metadata={"format": "pt"})


def publish(folder, case):
    if case.old_config or case.omit or case.extra:
        write_config(folder, case)
    if case.rename or case.tensors:
        rename_tensors(folder, case)
