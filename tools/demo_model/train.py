#!/usr/bin/env python3
"""Makes the demo model: a byte-level BPE tokenizer and a small Llama, both trained on stories of grammar.py.

  train.py --out model                 trains and writes a Hugging Face folder (about ten minutes of one CPU core)
  train.py --evaluate model            samples stories from a folder and prints the share that parses under the grammar

Needs PyTorch, transformers and tokenizers. The same versions, seed and thread count give the same weights again.
"""

import argparse
import copy
import json
import pathlib
import random
import time

import grammar
import tokenizers
import torch
import transformers

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1
VOCABULARY = 1024
CONTEXT = 512
# The loss is taken at this temperature. The grammar's choices are uniform, so sampling at 1 changes them little, but
# what is no choice at all becomes rarer.
TEMPERATURE = 1.25


def train_tokenizer(stories):
    """Byte-level BPE with GPT-2's pre-tokenizer pattern; an encoded text begins with BEGIN."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[BEGIN, END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(stories, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, BEGIN_ID)])
    return tokenizer


def make_config():
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        tie_word_embeddings=False, bos_token_id=BEGIN_ID, eos_token_id=END_ID)


def make_batch(stories, tokenizer):
    """Returns ids and labels, both [stories, longest]; padding has the label -100, which the loss skips."""
    encoded = [encoding.ids + [END_ID] for encoding in tokenizer.encode_batch(stories)]
    longest = max(map(len, encoded))
    ids = torch.tensor([row + [END_ID] * (longest - len(row)) for row in encoded])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in encoded])
    return ids, labels


def share_of_rate(step, steps):
    """Warm up, hold, then fall linearly to almost nothing."""
    return min(1.0, (step + 1) / 20, max(0.01, (steps - step) / (0.6 * steps)))


def make_optimizers(model):
    """Muon for the layers' matrices, which needs far fewer stories than AdamW alone."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        (matrices if parameter.dim() == 2 and ".layers." in name else others).append(parameter)
    return [torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.0),
            torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0)]


def train_model(tokenizer, arguments):
    """Writes the folder now and then, and at the end.

    Every batch is new stories, so there is nothing to overfit: no dropout, no weight decay."""
    torch.manual_seed(arguments.seed)
    stories, rng = grammar.Grammar(), random.Random(arguments.seed)
    model = transformers.LlamaForCausalLM(make_config()).train()
    # Far apart, and not tied to the head: names are used alike, so tied embeddings would become so alike that the model
    # does not learn to copy the name of the hero, whatever the optimizer.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizers = make_optimizers(model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks = [group["lr"] for group in groups]
    start, recent = time.time(), []
    for step in range(arguments.steps):
        for group, peak in zip(groups, peaks):
            group["lr"] = peak * share_of_rate(step, arguments.steps)
        ids, labels = make_batch([stories.sample(rng) for _ in range(arguments.batch)], tokenizer)
        logits = model(input_ids=ids).logits[:, :-1] / TEMPERATURE
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent.append(loss.item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}/{arguments.steps}  loss {sum(recent) / len(recent):.4f}  "
                  f"{time.time() - start:.0f} s, {time.process_time():.0f} s of CPU", flush=True)
            recent.clear()
        if (step + 1) % 100 == 0 or step + 1 == arguments.steps:
            save(model, tokenizer, arguments.out)


def save(model, tokenizer, folder):
    """Rounds to bf16. config.json names its type both as `dtype` and as `torch_dtype`, for older readers."""
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=BEGIN_ID, eos_token_id=END_ID, do_sample=True, temperature=0.8)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = config["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END,
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")


def sample_stories(model, prompts, temperature, seed):
    """Continues every prompt (a list of ids) to its END; returns lists of ids without BEGIN and END.

    Prompts of equal length share a batch, so that nothing is padded on the left."""
    torch.manual_seed(seed)
    results = [None] * len(prompts)
    for length in sorted(set(map(len, prompts))):
        members = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[i] for i in members])
        rows = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
            max_new_tokens=300, pad_token_id=END_ID)
        for i, row in zip(members, rows.tolist()):
            results[i] = row[1:row.index(END_ID)] if END_ID in row else row[1:]
    return results


def make_prompts(tokenizer, count, seed):
    """Openings of stories, cut after 1 to 12 words."""
    rng = random.Random(seed)
    texts = [" ".join(story.split(" ")[:rng.randint(1, 12)]) for story in grammar.sample_stories(count, seed)]
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def evaluate(folder, count, seed):
    stories = grammar.Grammar()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for dtype in (torch.float32, torch.bfloat16):
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for name, prompts in (("no prompt", [[BEGIN_ID]] * count), ("openings", make_prompts(tokenizer, count, seed))):
            for temperature in (1.0, 0.8):
                texts = [tokenizer.decode(ids) for ids in sample_stories(model, prompts, temperature, seed)]
                reasons = [stories.parse(text) for text in texts]
                print(f"{dtype}, {name}, temperature {temperature}: {reasons.count('') / count:.1%} of {count} parse, "
                      f"{len(set(texts))} different", flush=True)
                for reason in [reason for reason in reasons if reason][:3]:
                    print(f"    {reason}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "model")
    parser.add_argument("--evaluate", type=pathlib.Path, metavar="FOLDER", help="do not train, measure this folder")
    parser.add_argument("--count", type=int, default=200, help="stories a measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=16, help="stories a step")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.inference_mode(arguments.evaluate is not None):
        if arguments.evaluate:
            evaluate(arguments.evaluate, arguments.count, arguments.seed)
            return
        tokenizer = train_tokenizer(grammar.sample_stories(20000, arguments.seed))
        train_model(tokenizer, arguments)


if __name__ == "__main__":
    main()
