#!/usr/bin/env python3
"""Drives `fastdecode inspect` as a user does: on published configs, on the goldens' folders, and on what is refused.

usage: inspect_test.py PROGRAM [unittest arguments]
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else ""
LIMIT_S = float(os.environ.get("PROGRAM_LIMIT_S", "60"))
FOLDER = tempfile.TemporaryDirectory(prefix="fd-inspect-")
SCRATCH = pathlib.Path(FOLDER.name)
TESTS = pathlib.Path(__file__).resolve().parent.parent
GOLDENS = TESTS / "golden" / "transformers"
sys.path.insert(1, str(pathlib.Path(__file__).parent / "serve"))
from demo_server import MODEL as DEMO

# As published.
LLAMA_2_13B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 13824, "max_position_embeddings": 4096, "num_attention_heads": 40, "num_hidden_layers": 40,
    "num_key_value_heads": 40, "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False,
    "torch_dtype": "float16", "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2}
# Of Gemma 3 12B: what is so in all of the family is left out of text_config.
GEMMA_3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "num_local_experts": 8,
           "num_hidden_layers": 32, "vocab_size": 32000}


def run(*arguments):
    return subprocess.run([PROGRAM, "inspect", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)


def folder_of(name, config):
    folder = SCRATCH / name
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    return folder


def inspected(folder, *arguments):
    result = run("-m", folder, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# What older exports have besides, and follows from the config.
IGNORED = (".attn.bias", ".attention.bias", ".masked_bias", ".inv_freq")


def elements_in(folder, with_ignored=True):
    """Elements of all tensors, by the headers of the safetensors files."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
        for name, tensor in header.items():
            if name != "__metadata__" and (with_ignored or not name.endswith(IGNORED)):
                elements = 1
                for extent in tensor["shape"]:
                    elements *= extent
                total += elements
    return total


class Inspect(unittest.TestCase):
    def test_a_published_model_without_its_weights(self):
        model = inspected(folder_of("llama-2-13b", LLAMA_2_13B), "--memory", "40GB")
        self.assertTrue(model["supported"], model["problems"])
        self.assertEqual(model["parameters"], 13_015_864_320)
        self.assertEqual(model["weight_bytes"]["bf16"], 26_031_728_640)
        self.assertEqual(model["kv_bytes_per_token"]["bf16"], 2 * 40 * 5120 * 2)
        self.assertEqual(model["kv_bytes_per_token"]["f32"], 2 * 40 * 5120 * 4)
        self.assertEqual(model["memory"]["fits"]["bf16"],
                         {"tokens": 14609, "sequences_of_512": 28, "sequences_of_2048": 7})
        self.assertEqual(len(model["layer_kinds"]), 1)
        self.assertIsNone(model["checkpoint"])
        text = run("-m", SCRATCH / "llama-2-13b", "--memory", "40GB").stdout
        self.assertIn("LlamaForCausalLM (llama)", text)
        self.assertIn("13,015,864,320", text)
        self.assertIn("bf16: 14,609 tokens, 28 sequences of 512, 7 sequences of 2,048", text)

    def test_sizes_of_memory(self):
        folder = folder_of("llama-2-13b", LLAMA_2_13B)
        for size, wanted in (("40GB", 40 * 10**9), ("40GiB", 40 * 2**30), ("40", 40 * 2**30), ("0.5TB", 5 * 10**11),
                             ("1.5 GiB", 3 * 2**29)):
            self.assertEqual(inspected(folder, "--memory", size)["memory"]["bytes"], wanted, size)
        # Less than the weights take.
        small = inspected(folder, "--memory", "20GB")["memory"]
        self.assertEqual((small["kv_bytes"], small["fits"]["int8"]["tokens"]), (0, 0))
        for wrong in ("0", "-1GB", "40kB", "many", "nan", "inf", "1e30GB"):
            result = run("-m", folder, "--memory", wrong)
            self.assertEqual(result.returncode, 1, wrong)
            self.assertIn(f"--memory: '{wrong}' is no size above 0", result.stderr)

    def test_kinds_of_layers_of_a_wrapper(self):
        model = inspected(folder_of("gemma-3-12b", GEMMA_3_12B))
        self.assertTrue(model["supported"], model["problems"])
        self.assertEqual(model["parameters"], 11_766_034_176)  # transformers' Gemma3ForCausalLM
        windowed, full = model["layer_kinds"]
        self.assertEqual((windowed["count"], windowed["window"]), (40, 1024))
        self.assertEqual(windowed["positions"], {"kind": "rope", "theta": 10000.0, "scaling": "default"})
        self.assertEqual((full["count"], full["window"], full["layers"]), (8, None, list(range(5, 48, 6))))
        self.assertEqual(full["positions"], {"kind": "rope", "theta": 1e6, "scaling": "linear", "factor": 8.0})
        text = run("-m", SCRATCH / "gemma-3-12b").stdout
        self.assertIn("40 layers (0-4, 6-10, 12-16,", text)
        self.assertIn("sees 1,024 tokens; rope, theta 10000", text)

    def test_every_golden_has_as_many_parameters_as_its_files(self):
        folders = sorted(folder for folder in GOLDENS.iterdir() if folder.is_dir())
        self.assertGreater(len(folders), 40)
        for folder in folders:
            with self.subTest(golden=folder.name):
                model = inspected(folder)
                self.assertTrue(model["supported"], model["problems"])
                self.assertEqual(model["checkpoint"]["parameters"], elements_in(folder))
                if not model["checkpoint"]["skipped"]:
                    self.assertEqual(model["parameters"], elements_in(folder, with_ignored=False))
                self.assertIsNone(model["tokenizer"])
                self.assertIn("texts cannot be read", model["notes"][0])

    def test_tokenizer_and_template(self):
        model = inspected(DEMO)
        self.assertTrue(model["supported"], model["problems"])
        self.assertIn("tokenizer.json", model["tokenizer"]["file"])
        self.assertIn("chat_template.jinja", model["chat_template"]["file"])
        self.assertEqual(model["notes"], [])
        self.assertIn("tokenizer       " + str(DEMO), run("-m", DEMO).stdout)

    def test_what_is_refused_is_described(self):
        model = inspected(folder_of("mixtral", MIXTRAL))
        self.assertFalse(model["supported"])
        self.assertEqual((model["model_type"], model["architecture"]), ("mixtral", "MixtralForCausalLM"))
        self.assertIn('config.json: model_type is "mixtral"', model["problems"][0])
        self.assertIn("mixtures of experts: a router and many MLPs a layer", model["problems"][0])
        text = run("-m", SCRATCH / "mixtral").stdout
        self.assertIn("not supported", text)
        result = run("-m", SCRATCH / "mixtral", "--memory", "40GB")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--memory: the model's size is not known", result.stderr)
        quantised = folder_of("gptq", {**LLAMA_2_13B, "quantization_config": {"quant_method": "gptq", "bits": 4}})
        self.assertIn("quantised weights are not supported (these are gptq, 4 bits)", inspected(quantised)["problems"][0])

    def test_what_does_not_count_is_said(self):
        folder = SCRATCH / "notes"
        shutil.copytree(DEMO, folder)
        config = json.loads((folder / "config.json").read_text())
        config.update(tie_word_embeddings=True, rope_scaling={"factor": 8.0}, architectures=["LlamaModel"])
        del config["rms_norm_eps"]
        (folder / "config.json").write_text(json.dumps(config).replace("{", '{"odd": NaN, ', 1))
        (folder / "generation_config.json").write_text('{"temperature": NaN}')
        model = inspected(folder)
        self.assertTrue(model["supported"], model["problems"])
        notes = "\n".join(model["notes"])
        for part in ('architectures is ["LlamaModel"]: it does not count',
                     "rope_scaling.rope_type is missing: positions are not scaled, as in transformers; factor does not count",
                     "this is taken: rms_norm_eps (1e-06)", "temperature is NaN, expected a number from 0 to 100",
                     'it counts, though config.json has "tie_word_embeddings": true'):
            self.assertIn(part, notes)
        # The engine warns of the same.
        result = subprocess.run([PROGRAM, "generate", "-m", folder, "--prompt-ids", "0,300", "-n", "1"],
                                capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        for note in model["notes"]:
            self.assertIn(note.replace(str(folder), ""), result.stderr.replace(str(folder), ""))

    def test_likely_mistakes_are_guessed(self):
        weights = SCRATCH / "weights"
        shutil.copytree(DEMO, weights)
        (weights / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n")
        self.assertIn("it is a pointer that git-lfs left", inspected(weights)["problems"][0])
        (weights / "model.safetensors").rename(weights / "pytorch_model.bin")
        model = inspected(weights)
        self.assertFalse(model["supported"])
        self.assertIn("pytorch_model.bin is there, which are weights as PyTorch pickles them", model["problems"][0])
        outer = SCRATCH / "outer"
        shutil.copytree(DEMO, outer / "inner")
        cases = {"meta-llama/Llama-3.2-1B": "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B",
                 "~/model": "$HOME/model",
                 DEMO / "model.safetensors": f"it is a file; give the folder: -m {DEMO}",
                 outer: f"the model lies in a folder of it: -m {outer}/inner"}
        for given, guess in cases.items():
            for command in (["inspect", "-m", given], ["generate", "-m", given, "-p", "Anna", "-n", "1"]):
                result = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, timeout=LIMIT_S,
                                        cwd=SCRATCH)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn(guess, result.stderr)

    @unittest.skipIf(os.geteuid() != 0, "needs root to become somebody else")
    def test_what_may_not_be_read(self):
        os.chmod(SCRATCH, 0o755)
        folder = SCRATCH / "locked"
        shutil.copytree(DEMO, folder)
        for path, guess in ((folder / "config.json", "user 65534 may not read it"), (folder, "user 65534 may not read it")):
            os.chmod(path, 0o700)
            result = subprocess.run([PROGRAM, "inspect", "-m", folder], capture_output=True, text=True, timeout=LIMIT_S,
                                    user=65534)
            self.assertEqual(result.returncode, 1)
            self.assertIn(guess, result.stderr)

    def test_bad_folders(self):
        for folder, error in ((SCRATCH / "nowhere", "config.json: cannot open"),
                              (folder_of("text", "hello"), "config.json: not valid JSON"),
                              (folder_of("list", "[1]"), "expected a JSON object")):
            result = run("-m", folder)
            self.assertEqual(result.returncode, 1, folder)
            self.assertIn(error, result.stderr)
        broken = folder_of("broken", LLAMA_2_13B)
        (broken / "model.safetensors").write_bytes(b"\x00" * 4)
        model = inspected(broken)
        self.assertFalse(model["supported"])
        self.assertIn("model.safetensors", model["problems"][0])
        self.assertEqual(model["parameters"], 13_015_864_320)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
