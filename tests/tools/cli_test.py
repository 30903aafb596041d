#!/usr/bin/env python3
"""Drives the fastdecode program as a user does.

usage: cli_test.py PROGRAM REPOSITORY_ROOT [unittest arguments, such as BadOptions or Generate.test_stop_strings]
"""
import array
import atexit
import ctypes
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = ""
ROOT = pathlib.Path()
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="fd-cli-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", 120))
# Threads that yield to others on their cores may stand still for 10 seconds (Linux 6.18): no home is lost by that.
PATIENT = ["--hop-timeout-ms", "60000", "--gpu-wait-ms", "120000"]
# Little memory, so that a start is quick.
SMALL = ["--kv-gib", "0.02", "--max-sequences", "8", "-q", *PATIENT]
PROMPT = "Once upon a time"


def demo_model():
    return str(ROOT / "tools/demo_model/model")


def golden_model(name="gqa"):
    return ROOT / "tests/golden/transformers" / name


def as_user_with_default_signals():
    # A shell that starts the tests in the background may have had SIGINT ignored, and nohup SIGHUP.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run(*arguments, stdin="", **more):
    """Runs the program to its end."""
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, **more)


def generate(*arguments, model=None, **more):
    return run("generate", "--model", model or demo_model(), *SMALL, *arguments, **more)


def scratch(name):
    path = SCRATCH / name
    assert not path.exists(), path
    return path


def start_long(*arguments):
    """Eight times 450 tokens, one after the other: 14 seconds and more on any machine, as each layer takes one ms."""
    prompts = [x for i in range(8) for x in ("-p", f"{PROMPT} {i}")]
    command = [PROGRAM, "generate", "--model", demo_model(), "--max-sequences", "1", "--kv-gib", "0.02", "-q", "-n", "450",
               "--ignore-eos", "--fault", "delay=1:1ms", *PATIENT, *prompts, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=as_user_with_default_signals)


class ProgramTest(unittest.TestCase):
    def succeed(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def answers(self, *arguments, **more):
        """The JSON objects of a generate command."""
        lines = self.succeed(generate("--json", *arguments, **more)).splitlines()
        return [json.loads(line) for line in lines]

    @staticmethod
    def tried_until(is_good, runs):
        """What `runs` ran, again and again until it is good, if it ever is."""
        until = time.monotonic() + LIMIT_S
        while True:
            ran = runs()
            if is_good(ran) or time.monotonic() > until:
                return ran

    def tried(self, *arguments, busy=("the machine is too busy", "the machine is busy: 0 good repetitions"), **more):
        """What was run, on a machine that is not too busy to be measured all the time; if it is, it says one of `busy`."""
        return self.tried_until(lambda ran: not any(words in ran.stderr for words in busy),
                                lambda: run(*arguments, **more))

    def measured(self, *arguments, **more):
        return self.succeed(self.tried(*arguments, **more))

    def told_of_pages(self, is_told, runs):
        """What `runs` ran. Of a home that a busy machine keeps from answering in time, it does not tell what pages it has."""
        return self.tried_until(lambda ran: ran.returncode != 0 or is_told(ran), runs)

    def refused(self, result, *needles):
        """Exit code 1, an error on stderr that says all of `needles`, and nothing on stdout."""
        self.assertEqual(result.returncode, 1, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("fastdecode: error: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        for needle in needles:
            self.assertIn(str(needle), errors[0])
        self.assertEqual(result.stdout, "")
        return errors[0]


# ---------------------------------------------------------------------------------------------------------------- text


class Generate(ProgramTest):
    def test_one_prompt_streams_prompt_and_text(self):
        text = self.succeed(generate("-p", PROMPT, "-n", 20, "--temp", 0))
        self.assertTrue(text.startswith(PROMPT), text)
        self.assertGreater(len(text.strip()), len(PROMPT) + 10)

    def test_the_models_makers_recommend_how_to_sample(self):
        model = scratch("greedy-model")
        shutil.copytree(demo_model(), model)
        ids = lambda *arguments: [a["token_ids"] for a in self.answers("-p", PROMPT, "-p", PROMPT, "-n", 12, *arguments,
                                                                        model=model)]
        (model / "generation_config.json").write_text('{"do_sample": false, "eos_token_id": 1}')
        greedy = ids()
        self.assertEqual(greedy[0], greedy[1])
        self.assertEqual(greedy, ids("--temperature", 0))
        hot = ids("--temperature", 1.5)  # what is said counts more
        self.assertNotEqual(hot[0], hot[1])
        (model / "generation_config.json").write_text('{"temperature": 1.5, "eos_token_id": 1}')
        self.assertEqual(ids(), hot)
        (model / "generation_config.json").write_text('{"temperature": "hot"}')
        result = generate("-p", PROMPT, "-n", 2, model=model)
        self.succeed(result)
        self.assertIn('generation_config.json: temperature is "hot", expected a number from 0 to 100: it does not count',
                      result.stderr)

    def test_several_prompts_are_told_apart(self):
        text = self.succeed(generate("-p", "A", "-p", "B", "-n", 5, "--temp", 0))
        self.assertRegex(text, r"(?s)^== 1 of 2\nA.*\n== 2 of 2\nB.*\n$")

    def test_prompts_from_everywhere_keep_their_order(self):
        one, lines = scratch("one.txt"), scratch("lines.txt")
        one.write_text("Two\nlines\n")
        lines.write_text("Three\nFour\n")
        out = self.answers("-p", "One", "-f", one, "-f", "-", "--prompts-file", lines, "--prompt-ids", "5,6,7", "-n", 2,
                           "--temp", 0, stdin="stdin\n")
        self.assertEqual([a["index"] for a in out], [0, 1, 2, 3, 4, 5])
        self.assertEqual(out[5]["prompt_tokens"], 3)
        alone = [self.answers("-p", p, "-n", 2, "--temp", 0, "--exact")[0] for p in ("Two\nlines", "stdin")]
        self.assertEqual([a["prompt_tokens"] for a in alone], [out[1]["prompt_tokens"], out[2]["prompt_tokens"]])

    def test_prompts_file_from_stdin(self):
        self.assertEqual(len(self.answers("--prompts-file", "-", "-n", 1, stdin="A\nB\nC\n")), 3)

    def test_files_of_other_systems(self):
        lines, one = scratch("crlf-lines.txt"), scratch("crlf-one.txt")
        lines.write_bytes(b"\xef\xbb\xbfA\r\n\r\nB \r\r\nC\r")
        one.write_bytes(b"\xef\xbb\xbfA\r\nB\r\n")
        files = ["-f", one, "--prompts-file", lines]
        same = [x for prompt in ("A\r\nB", "A", "", "B \r", "C\r") for x in ("-p", prompt)]
        ours, theirs = ([(a["prompt_tokens"], a["token_ids"]) for a in self.answers(*prompts, "-n", 3, "--temp", 0, "--exact")]
                        for prompts in (files, same))
        self.assertEqual(ours, theirs)

    def test_prompts_that_look_like_something_else(self):
        out = self.answers(*[x for p in ("{}", "[a,b]", "-x", "--help", "a,b") for x in ("-p", p)], "-n", 1, "--temp", 0)
        self.assertEqual(len(out), 5)
        text = self.succeed(generate("-p", "[a,b]", "-n", 1, "--temp", 0))
        self.assertTrue(text.startswith("[a,b]"), text)

    def test_special_tokens_that_prompts_spell_out(self):
        prompt = "Once <|end|> upon"
        file, lines = scratch("special.txt"), scratch("special-lines.txt")
        file.write_text(prompt)
        lines.write_text(prompt + "\n")
        for ways in (["-p", prompt], ["-f", file], ["--prompts-file", lines]):
            (told,) = self.answers(*ways, "-n", 2, "--temp", 0)
            (plain,) = self.answers(*ways, "--plain", "-n", 2, "--temp", 0)
            self.assertGreater(plain["prompt_tokens"], told["prompt_tokens"] + 2, ways)
        self.assertTrue(self.succeed(generate("-p", prompt, "--plain", "-n", 1)).startswith(prompt))
        # To the id, also where the command itself makes ids of the prompt: logits are those of the ids.
        exact = ["-n", 1, "--temp", 0, "--exact", "--no-special-tokens", "--logits"]
        logits = [scratch(f"special-{i}.npy") for i in range(3)]
        (told,) = self.answers("-p", "<|end|>", *exact, logits[0])
        self.answers("--prompt-ids", 1, *exact, logits[1])
        self.assertEqual((told["prompt_tokens"], logits[0].read_bytes()), (1, logits[1].read_bytes()))
        (plain,) = self.answers("-p", "<|end|>", "--plain", *exact, logits[2])
        self.assertIn(f"({plain['prompt_tokens']}, 1024)".encode(), logits[2].read_bytes()[:128])
        self.assertGreater(plain["prompt_tokens"], 2)

    def test_special_tokens_of_answers(self):
        told = ["-p", PROMPT, "-n", 2, "--temp", 0, "--ignore-eos", "--logit-bias", "1:1000"]
        self.assertEqual(self.answers(*told)[0]["text"], "")
        self.assertEqual(self.answers(*told, "--show-special")[0]["text"], "<|end|><|end|>")

    def test_a_prompt_that_spells_out_bos(self):
        told = ["-p", "<|begin|>Once", "-p", "<|begin|>A", "-n", 1]
        result = generate(*told)
        self.succeed(result)
        self.assertEqual(result.stderr.count("begins with bos (token id 0) twice"), 1, result.stderr)
        for more in ("--no-special-tokens", "--plain"):
            self.assertEqual(generate(*told, more).stderr, "")

    def test_json_has_its_fields(self):
        (answer,) = self.answers("-p", PROMPT, "-n", 12, "--temp", 0, "--ignore-eos")
        self.assertEqual(set(answer), {"index", "text", "token_ids", "finish_reason", "prompt_tokens", "cached_tokens",
                                       "generated_tokens", "times"})
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual(answer["generated_tokens"], 12)
        self.assertEqual(len(answer["token_ids"]), 12)
        self.assertTrue(all(isinstance(t, int) for t in answer["token_ids"]))
        times = answer["times"]
        self.assertEqual(set(times), {"total_ms", "ttft_ms", "tpot_ms"})
        self.assertGreater(times["ttft_ms"], 0)
        self.assertLess(times["ttft_ms"], times["total_ms"])
        self.assertAlmostEqual(times["ttft_ms"] + 11 * times["tpot_ms"], times["total_ms"], delta=0.2 * times["total_ms"] + 50)

    def test_token_ids_in_and_out_without_a_tokenizer(self):
        model = golden_model()
        golden = json.loads((model / "goldens.json").read_text())
        text = self.succeed(generate("--prompt-ids", "1,2,3", "-n", 4, "--temp", 0, model=model))
        self.assertRegex(text, r"^\d+(,\d+){0,3}\n$")
        (answer,) = self.answers("--prompt-ids", "1, 2,3", "-n", 4, "--temp", 0, model=model)
        self.assertEqual(text.strip(), ",".join(map(str, answer["token_ids"])))
        self.assertTrue(golden)

    def test_seed_repeats_and_differs(self):
        base = ["--temp", 1, "-n", 40, "--exact"]
        seven = self.answers("-p", PROMPT, *base, "--seed", 7)[0]["token_ids"]
        self.assertEqual(seven, self.answers("-p", PROMPT, *base, "--seed", 7)[0]["token_ids"])
        both = self.answers("-p", PROMPT, "-p", PROMPT, *base, "--seed", 7)
        self.assertEqual(both[0]["token_ids"], seven)
        self.assertNotEqual(both[1]["token_ids"], seven)
        # Prompt i samples with seed + i.
        self.assertEqual(both[1]["token_ids"], self.answers("-p", PROMPT, *base, "--seed", 8)[0]["token_ids"])

    def test_choices(self):
        base = ["--temp", 1, "-n", 20, "--batch-invariant", "--seed", 7, "--ignore-eos"]
        out = self.answers("-p", PROMPT, "-p", "A", *base, "--choices", 3, "--logprobs", 0)
        self.assertEqual([(a["index"], a["choice"]) for a in out], [(i, k) for i in range(2) for k in range(3)])
        self.assertEqual([a["generated_tokens"] for a in out], [20] * 6)
        self.assertEqual([len(a["logprobs"]) for a in out], [20] * 6)
        self.assertEqual(len({a["prompt_tokens"] for a in out[:3]}), 1)
        # Choice k of prompt i samples with seed + 3 i + k.
        tokens = [a["token_ids"] for a in out]
        self.assertEqual(len(set(map(tuple, tokens))), 6)
        alone = [a["token_ids"] for a in self.answers(*["-p", PROMPT] * 3, *base)]
        self.assertEqual(alone, tokens[:3])
        base[base.index("--seed") + 1] = 7 + 3 + 1
        self.assertEqual(self.answers("-p", "A", *base)[0]["token_ids"], tokens[4])

    def test_choices_are_told_apart(self):
        greedy = ["-n", 3, "--temp", 0, "--ignore-eos", "--batch-invariant"]
        (one,) = self.answers("-p", "A", *greedy)
        text = "A" + one["text"] + "\n"
        self.assertEqual(self.succeed(generate("-p", "A", *greedy, "--choices", 2)),
                         "== choice 1 of 2\n" + text + "== choice 2 of 2\n" + text)
        several = self.succeed(generate("-p", "A", "-p", "A", *greedy, "--choices", 2))
        self.assertEqual(several, "".join(f"== {i} of 2, choice {k} of 2\n" + text for i in (1, 2) for k in (1, 2)))
        ids = self.succeed(generate("--prompt-ids", "1,2,3", *greedy, "--choices", 2, model=golden_model()))
        self.assertRegex(ids, r"^== choice 1 of 2\n(\d+,\d+,\d+)\n== choice 2 of 2\n\1\n$")

    def test_a_prompt_that_cannot_be_has_no_choices(self):
        lines = "A\n" + "word " * 400 + "\nB\n"
        result = generate("--prompts-file", "-", "--json", "-n", 3, "--ignore-eos", "--choices", 2, stdin=lines)
        self.assertEqual(result.returncode, 1)
        out = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([(a["index"], a["choice"], a["finish_reason"]) for a in out],
                         [(0, 0, "length"), (0, 1, "length"), (1, 0, "error"), (1, 1, "error"), (2, 0, "length"), (2, 1, "length")])
        errors = result.stderr.splitlines()
        self.assertRegex(errors[0], "^fastdecode: error: prompt 2 of 3: .*context of 512")
        self.assertEqual(errors[1:], ["fastdecode: error: 2 of 3 prompts were answered"])

    def test_what_of_a_prompt_others_had_computed(self):
        prompt = ["--prompt-ids", ",".join(map(str, range(2, 202)))]
        one_by_one = [*prompt * 3, "-n", 4, "--temp", 0, "--ignore-eos", "--batch-invariant", "--max-queue", 1]
        first, *later = self.answers(*one_by_one, "--prefix-cache", "on")
        self.assertEqual(first["cached_tokens"], 0)
        for answer in later:
            self.assertTrue(100 < answer["cached_tokens"] < 200, answer)
            self.assertEqual(answer["token_ids"], first["token_ids"])
        self.assertEqual([a["cached_tokens"] for a in self.answers(*one_by_one, "--prefix-cache", "off")], [0, 0, 0])

    def test_stop_strings(self):
        whole = self.answers("-p", PROMPT, "-n", 40, "--temp", 0, "--exact")[0]["text"]
        stop = whole[len(whole) // 2:][:4]
        before = whole[:whole.index(stop)]
        cut = self.answers("-p", PROMPT, "-n", 40, "--temp", 0, "--exact", "--stop", stop, "--stop", "never this")[0]
        self.assertEqual((cut["text"], cut["finish_reason"]), (before, "stop"))
        kept = self.answers("-p", PROMPT, "-n", 40, "--temp", 0, "--exact", "--stop", stop, "--include-stop")[0]
        self.assertEqual(kept["text"], before + stop)

    def test_stop_tokens_eos_and_max_tokens(self):
        ended = self.answers("-p", PROMPT, "-n", 450, "--temp", 0, "--exact")[0]
        self.assertEqual(ended["finish_reason"], "stop", "the demo model's story has no end")
        on = self.answers("-p", PROMPT, "-n", 450, "--temp", 0, "--exact", "--ignore-eos")[0]
        self.assertEqual((on["finish_reason"], on["generated_tokens"]), ("length", 450))
        self.assertEqual(on["token_ids"][:len(ended["token_ids"])], ended["token_ids"])
        third = ended["token_ids"][2]
        first_use = ended["token_ids"].index(third)
        stopped = self.answers("-p", PROMPT, "--temp", 0, "--exact", "--stop-token-ids", third)[0]
        self.assertEqual((stopped["token_ids"], stopped["finish_reason"]), (ended["token_ids"][:first_use], "stop"))

    def test_the_context_bounds_what_is_generated(self):
        (answer,) = self.answers("--prompt-ids", "5,6,7,8", "-n", 100, "--ignore-eos", "--max-context", 32)
        self.assertEqual((answer["generated_tokens"], answer["finish_reason"]), (28, "length"))

    def test_logprobs(self):
        (answer,) = self.answers("-p", PROMPT, "-n", 5, "--temp", 0, "--logprobs", 3)
        self.assertEqual(len(answer["logprobs"]), answer["generated_tokens"])
        for token, entry in zip(answer["token_ids"], answer["logprobs"]):
            self.assertEqual(entry["token"], token)
            self.assertLessEqual(entry["logprob"], 0)
            tops = [t["logprob"] for t in entry["top"]]
            self.assertEqual(len(tops), 3)
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertEqual(entry["top"][0], {"token": token, "logprob": entry["logprob"]})

    def test_logit_bias_decides(self):
        (answer,) = self.answers("-p", PROMPT, "-n", 3, "--temp", 0, "--logit-bias", "77:1000", "--ignore-eos")
        self.assertEqual(answer["token_ids"], [77, 77, 77])

    def test_logits_as_a_numpy_file(self):
        path = scratch("logits.npy")
        (answer,) = self.answers("-p", PROMPT, "-n", 1, "--temp", 0, "--exact", "--logits", path)
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        (header_bytes,) = struct.unpack("<H", data[8:10])
        self.assertEqual((10 + header_bytes) % 64, 0)
        header = data[10:10 + header_bytes].decode()
        self.assertTrue(header.endswith("\n"))
        fields = eval(header, {"__builtins__": {}})  # a dictionary of literals, by the format
        vocab = json.loads((ROOT / "tools/demo_model/model/config.json").read_text())["vocab_size"]
        self.assertEqual(fields, {"descr": "<f4", "fortran_order": False, "shape": (answer["prompt_tokens"], vocab)})
        values = array.array("f", data[10 + header_bytes:])
        self.assertEqual(len(values), answer["prompt_tokens"] * vocab)
        last = values[-vocab:]
        self.assertEqual(max(range(vocab), key=last.__getitem__), answer["token_ids"][0])
        self.assertEqual([p.name for p in SCRATCH.glob("logits.npy*")], ["logits.npy"])

    def test_logits_do_not_depend_on_a_reader_of_the_text(self):
        path = scratch("unread.npy")
        program = subprocess.Popen([PROGRAM, "generate", "-m", demo_model(), *map(str, SMALL), "-p", PROMPT, "-n", "400", "--ignore-eos",
                                    "--logits", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        program.stdout.read(1)
        program.stdout.close()
        program.communicate(timeout=LIMIT_S)
        self.assertTrue(path.read_bytes().startswith(b"\x93NUMPY"))

    def test_logits_leave_pipes_and_links_what_they_are(self):
        arguments = ["--prompt-ids", "1,2,3", "-n", 1, "--temp", 0, "--exact", "--logits"]
        path, link, pipe = scratch("plain.npy"), scratch("link.npy"), scratch("pipe.npy")
        path.touch()
        link.symlink_to(path.name)
        self.answers(*arguments, link, model=golden_model())
        self.assertTrue(link.is_symlink())
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # the file fits the pipe
        self.addCleanup(os.close, reader)
        self.answers(*arguments, pipe, model=golden_model())
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(os.read(reader, 1 << 16), path.read_bytes())

    def test_more_prompts_than_the_queue_takes(self):
        arguments = [x for i in range(7) for x in ("-p", f"{i}")]
        out = self.answers(*arguments, "-n", 3, "--max-queue", 2)
        self.assertEqual([a["index"] for a in out], list(range(7)))

    def test_a_prompt_that_cannot_be_costs_the_others_nothing(self):
        lines = "A\n" + "word " * 400 + "\nB\nC\n"
        for queue in (1, 100):
            result = generate("--prompts-file", "-", "--json", "-n", 3, "--ignore-eos", "--max-queue", queue, stdin=lines)
            self.assertEqual(result.returncode, 1)
            out = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual([a["index"] for a in out], [0, 1, 2, 3])
            self.assertEqual([a["finish_reason"] for a in out], ["length", "error", "length", "length"])
            self.assertIn("context of 512", out[1]["error"])
            self.assertEqual([a["generated_tokens"] for a in out], [3, 0, 3, 3])
            errors = result.stderr.splitlines()
            self.assertRegex(errors[0], "^fastdecode: error: prompt 2 of 4: .*context of 512")
            self.assertEqual(errors[1:], ["fastdecode: error: 3 of 4 prompts were answered"])
        result = generate("--prompts-file", "-", "-n", 3, stdin=lines)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(re.findall("(?m)^== .*$", result.stdout), ["== 1 of 4", "== 3 of 4", "== 4 of 4"])
        self.assertIn("error: prompt 2 of 4: ", result.stderr)

    def test_report(self):
        out = self.succeed(generate("-p", PROMPT, "-n", 30, "--report", "--ignore-eos"))
        self.assertRegex(out, r"(?m)^home 0: local, .*, read with [\d.]+ GB/s, (shared memory|no link: the S-Part's threads attend within its stages)$")
        self.assertRegex(out, r"time to first token +1 +[\d.]+ +- +- +- +[\d.]+\n")
        self.assertRegex(out, r"inter-token latency +29 +[\d.]+ +[\d.]+ +- +- +[\d.]+\n")
        for needle in ("time to first token", "time per output token", "inter-token latency", "S-Part stage", "hop",
                       "R-Part at home 0", "tokens/s", "overlap", "home 0: local"):
            self.assertIn(needle, out)
        result = generate("-p", PROMPT, "-n", 3, "--report", "--json")
        self.assertEqual(len(self.succeed(result).splitlines()), 1)
        self.assertIn("inter-token latency", result.stderr)

    def test_core_plans_give_the_same_tokens(self):
        def tokens_and_plan(*arguments):
            result = generate("-p", PROMPT, "-n", 40, "--report", "--json", "--exact", "--spart", "cpu", *arguments)
            self.succeed(result)
            return json.loads(result.stdout)["token_ids"], re.search(r"core plan: .*", result.stderr.split("\n\n")[-1]).group()
        tokens, plan = tokens_and_plan()
        # Other tests may have the cores just now.
        self.assertIn(plan, ["core plan: shared, 1 micro-batch (--core-plan auto: the S-Part is on the CPU and every home in this process)",
                             "core plan: split, 2 micro-batches (--core-plan auto: other processes or a CPU quota leave less than these cores)"])
        cases = [(["--core-plan", "split"], "split, 2 micro-batches (--core-plan split)"),
                 (["--core-plan", "shared", "--poll", "spin"], "shared, 1 micro-batch (--core-plan shared)"),
                 (["--core-plan", "shared", "--poll", "yield"], "shared, 1 micro-batch (--core-plan shared)"),
                 (["--micro-batches", "3"], "split, 3 micro-batches (--core-plan auto: --micro-batches is given)")]
        for arguments, expected in cases:
            with self.subTest(arguments=arguments):
                self.assertEqual(tokens_and_plan(*arguments), (tokens, "core plan: " + expected))
        core = min(os.sched_getaffinity(0))
        for arguments in ["--core-plan", "shared", "--poll", "spin"], ["--core-plan", "split"]:
            with self.subTest(one_core=arguments):
                one = generate("-p", PROMPT, "-n", 40, "--json", "--exact", "--spart", "cpu", *arguments,
                               preexec_fn=lambda: os.sched_setaffinity(0, {core}))
                self.succeed(one)
                self.assertEqual(json.loads(one.stdout)["token_ids"], tokens)
        self.refused(generate("-p", "A", "--spart", "cpu", "--core-plan", "shared", "--micro-batches", 2), "--micro-batches: 2", "--core-plan split")
        self.refused(generate("-p", "A", "--spart", "cpu", "--core-plan", "shared", "--homes", "unix:/nowhere"), "--core-plan: 'shared'", "unix:/nowhere")

    def test_report_shows_pages_in_use(self):
        """200 to 219 tokens lie on 7 pages, the last ones of a piece of 4, of which one is held."""
        out = self.succeed(self.told_of_pages(
            lambda ran: "KV pages at home 0: " in ran.stdout and "all free whenever it counted" not in ran.stdout,
            lambda: generate("--prompt-ids", ",".join(["5"] * 200), "-n", 20, "--report", "--ignore-eos", "--homes",
                             "local:1", "--fault", "delay=1:20ms")))
        pages = int(re.search(r"(?m)^home 0: .*, (\d+) pages of", out)[1])
        self.assertIn(f"\nKV pages at home 0: {pages}; when fullest 7 used, {pages - 7} free, runs held 1 unused\n", out)

    def test_quiet_and_not(self):
        arguments = ["generate", "-m", golden_model(), "--prompt-ids", "1", "-n", 1, "--kv-gib", "0.02", *PATIENT]
        self.assertNotIn("loaded", run(*arguments, "-q").stderr)  # warnings of this machine stay
        self.assertIn("loaded", run(*arguments).stderr)

    def test_names_that_users_of_other_programs_know(self):
        out = self.succeed(run("generate", "-m", demo_model(), "-q", "-p", "A", "--n-predict", 2, "--temp", 0, "--ctx-size", 64,
                               "--max-num-seqs", 4, "--batch-invariant", "--kv-gib", "0.02", "-s", 3, *PATIENT))
        self.assertTrue(out.startswith("A"))


# ------------------------------------------------------------------------------------------------------------- workers


class Worker:
    """A worker process at a socket of its own."""

    def __init__(self, name, *arguments, kv_gib="0.02"):
        self.path = SCRATCH / name
        command = [PROGRAM, "worker", "--listen", f"unix:{self.path}", "--kv-gib", kv_gib, *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=self.prepare)
        self.lines = []
        self.listening = threading.Event()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def prepare(self):
        as_user_with_default_signals()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening on"):
                self.listening.set()

    def __enter__(self):
        assert self.listening.wait(LIMIT_S), self.lines
        return self

    def end(self, by=signal.SIGTERM):
        self.process.send_signal(by)
        code = self.process.wait(LIMIT_S)
        self.reader.join()
        return code

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
        self.process.stderr.close()


class Workers(ProgramTest):
    @staticmethod
    def homes(reported):
        return re.findall(r"(?m)^home (\d+): .* pages of ", reported.stderr)

    @staticmethod
    def homes_with_pages(reported):
        return re.findall(r"(?m)^KV pages at home (\d+): \d+; ", reported.stderr)

    def test_homes_local_and_of_a_worker(self):
        arguments = ["-p", PROMPT, "-p", "A", "-p", "B", "-n", 20, "--temp", 0, "--exact"]
        alone = [a["token_ids"] for a in self.answers(*arguments)]
        with Worker("w1.sock") as worker:
            for homes in (f"unix:{worker.path}", f"local,unix:{worker.path}", f"local:2,unix:{worker.path}"):
                result = self.told_of_pages(lambda ran: self.homes_with_pages(ran) == self.homes(ran),
                                            lambda: generate("--json", *arguments, "--homes", homes, "--report"))
                out = [json.loads(line) for line in self.succeed(result).splitlines()]
                self.assertEqual([a["token_ids"] for a in out], alone)
                self.assertIn(f"unix:{worker.path}, home 0", result.stderr)
                self.assertEqual(self.homes_with_pages(result), self.homes(result))
            self.assertEqual(worker.path.stat().st_mode & 0o777, 0o600)
            self.assertEqual(worker.end(signal.SIGHUP), 0)
            self.assertFalse(worker.path.exists())
            self.assertIn("home 0:", "".join(worker.lines))

    def test_a_logout_sends_more_than_one_signal(self):
        with Worker("twice.sock", kv_gib="1") as worker:
            worker.process.terminate()
            while worker.process.poll() is None:
                worker.process.send_signal(signal.SIGHUP)
                time.sleep(0.001)
            self.assertEqual(worker.end(signal.SIGHUP), 0)
            self.assertFalse(worker.path.exists())

    def door_before_memory(self, name):
        """A worker whose door has just opened: it takes its memory now."""
        path = SCRATCH / name
        process = subprocess.Popen([PROGRAM, "worker", "--listen", f"unix:{path}", "--kv-gib", "1", "-q"],
                                   preexec_fn=as_user_with_default_signals)
        self.addCleanup(process.kill)
        while not path.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        return process, path

    def test_an_engine_may_come_before_the_workers_memory(self):
        process, path = self.door_before_memory("early.sock")
        self.succeed(generate("-p", "A", "-n", 2, "--homes", f"unix:{path}"))
        process.terminate()
        self.assertEqual(process.wait(LIMIT_S), 0)

    def test_a_worker_that_is_ended_while_it_takes_its_memory(self):
        process, path = self.door_before_memory("ended.sock")
        process.terminate()
        self.assertIn(process.wait(LIMIT_S), (0, 128 + signal.SIGTERM))  # 0: it was quicker
        self.assertFalse(path.exists())

    def test_a_worker_serves_one_engine_at_a_time(self):
        with Worker("w4.sock") as worker:
            homes = ["--homes", f"unix:{worker.path}"]
            first = start_long(*homes)
            self.assertTrue(first.stdout.read(10))
            self.refused(generate("-p", "A", *homes), worker.path, "already serves 1 engine (--peers 1): engine")
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=LIMIT_S)
            self.assertEqual(first.returncode, 130)
            self.succeed(generate("-p", "A", "-n", 2, *homes))
            self.assertEqual(worker.end(), 0)

    def test_worker_of_another_model(self):
        with Worker("w2.sock", "--model", golden_model("mha")) as worker:
            self.refused(generate("-p", "A", "--homes", f"unix:{worker.path}"), worker.path, "another model", "layers")
            self.assertEqual(worker.end(), 0)

    def test_socket_in_use(self):
        with Worker("w3.sock") as worker:
            arguments = ["worker", "--listen", f"unix:{worker.path}", "--kv-gib", "0.02"]
            self.refused(run(*arguments), worker.path, "in use", worker.process.pid)
            # The file of a worker that was killed is not in the way.
            worker.end(signal.SIGKILL)
            self.assertTrue(worker.path.exists())
        with Worker("w3.sock") as worker:
            self.assertEqual(worker.end(), 0)

    def test_file_in_the_way(self):
        path = scratch("not-a-socket")
        path.write_text("precious")
        self.refused(run("worker", "--listen", f"unix:{path}", "--kv-gib", "0.02"), path, "no socket")
        self.assertEqual(path.read_text(), "precious")

    def test_worker_of_another_protocol_version(self):
        # The prefix of rdma/shm/handshake.h: magic, version, kind (2: acceptance), bytes, reserved.
        answer = struct.pack("<QIIII", 0x314B4E4C45444346, 99, 2, 552, 0).ljust(552, b"\0")
        path = SCRATCH / "v99.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(LIMIT_S)
            proposals = []

            def serve():
                client, _ = listener.accept()
                with client:
                    proposals.append(client.recv(4096))
                    client.send(answer)
                    client.recv(1)

            server = threading.Thread(target=serve)
            server.start()
            self.refused(generate("-p", "A", "--homes", f"unix:{path}"), path, "version 99")
            server.join()
        magic, version, kind, size = struct.unpack("<QIII", proposals[0][:20])
        self.assertEqual((magic, kind, size), (0x314B4E4C45444346, 1, len(proposals[0])))
        self.assertNotEqual(version, 99)

    def test_something_else_listens(self):
        path = SCRATCH / "other.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(LIMIT_S)

            def serve():
                client, _ = listener.accept()
                with client:
                    client.recv(4096)
                    client.send(b"SSH-2.0-OpenSSH_9.2")
                    client.recv(1)

            server = threading.Thread(target=serve)
            server.start()
            self.refused(generate("-p", "A", "--homes", f"unix:{path}"), path)
            server.join()

    def test_no_worker(self):
        self.refused(generate("-p", "A", "--homes", f"unix:{SCRATCH}/nobody.sock"), f"{SCRATCH}/nobody.sock", "No such file")


# ------------------------------------------------------------------------------------------------- synth and bench step


class SynthAndBench(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.model = SCRATCH / "tiny"
        result = run("synth", "--shape", "tiny-random", "--out", cls.model)
        assert result.returncode == 0, result.stderr

    def test_shapes_are_listed(self):
        help_text = self.succeed(run("synth", "--help"))
        for shape in ("tiny-random", "balance", "tinyllama-1.1b", "llama-3.2-1b", "llama-2-7b", "llama-3-8b", "mistral-7b"):
            self.assertIn(shape, help_text)

    def test_written_and_loaded(self):
        (answer,) = self.answers("--prompt-ids", "1,2,3", "-n", 8, "--ignore-eos", model=self.model)
        self.assertEqual(answer["generated_tokens"], 8)
        self.assertEqual(list(SCRATCH.glob("tiny.partial*")), [])

    def test_seed_layers_and_dtype(self):
        again, other, f32 = scratch("tiny-again"), scratch("tiny-other"), scratch("tiny-f32")
        self.succeed(run("synth", "--shape", "tiny-random", "--out", again, "--seed", 1))
        self.succeed(run("synth", "--shape", "tiny-random", "--out", other, "--seed", 2))
        self.succeed(run("synth", "--shape", "tiny-random", "--out", f32, "--dtype", "f32", "--layers", 1))
        weights = "model.safetensors"
        self.assertEqual((again / weights).read_bytes(), (self.model / weights).read_bytes())
        self.assertNotEqual((other / weights).read_bytes(), (self.model / weights).read_bytes())
        config = json.loads((f32 / "config.json").read_text())
        self.assertEqual(config["num_hidden_layers"], 1)
        self.assertEqual(len(self.answers("--prompt-ids", "1", "-n", 2, model=f32)), 1)

    def test_outlier_channels_change_no_logit(self):
        folder = scratch("tiny-outliers")
        self.succeed(run("synth", "--shape", "tiny-random", "--out", folder, "--k-outliers", "4:64"))
        weights = "model.safetensors"
        self.assertNotEqual((folder / weights).read_bytes(), (self.model / weights).read_bytes())
        logits = []
        for model in (self.model, folder):
            path = scratch(f"outliers-{len(logits)}.npy")
            ids = ",".join(str(i * 37 % 256) for i in range(100))
            self.answers("--prompt-ids", ids, "-n", 1, "--temp", 0, "--exact", "--logits", path, model=model)
            logits.append(path.read_bytes())
        self.assertEqual(logits[0], logits[1])

    def test_bad_synth(self):
        for value in ("x", "4:", "4:x", ":16", "4:16:1", "3", "18", "4:0.5"):
            with self.subTest(value=value):
                self.refused(run("synth", "--shape", "tiny-random", "--out", scratch("s4"), "--k-outliers", value),
                             "outlier", value.split(":")[-1])
        self.refused(run("synth", "--shape", "llama-9", "--out", scratch("s1")), "llama-9", "tiny-random")
        self.refused(run("synth", "--shape", "tiny-random", "--out", self.model), self.model, "not empty")
        self.refused(run("synth", "--shape", "tiny-random", "--dtype", "q4", "--out", scratch("s2")), "dtype", "q4")
        self.refused(run("synth", "--shape", "tiny-random", "--layers", "-3", "--out", scratch("s3")), "-3")
        self.refused(run("synth", "--shape", "tiny-random"), "--out")
        self.refused(run("synth", "--shape", "tiny-random", "--out", "/proc/no/such"), "/proc/no/such")
        self.assertEqual(list(SCRATCH.glob("s[123]*")), [])

    def test_bench_step(self):
        # Such small steps may be over before a busy machine lets the program see the window's start.
        arguments = ["bench", "step", "--model", self.model, "--batch", 48, "--context", 48, "-q", *PATIENT, "--fault",
                     "delay=1:1ms"]
        missed = ["before the window was over", "the window caught"]
        result = json.loads(self.succeed(self.told_of_pages(
            lambda ran: all("pages_used" in home for home in json.loads(ran.stdout)["homes"]),
            lambda: self.tried(*arguments, "--rounds", 100, "--json", "--micro-batches", 3, busy=missed))))
        self.assertEqual((result["batch"], result["context"], result["micro_batches"]), (48, 48, 3))
        for field in ("overlap", "s_busy", "r_busy"):
            self.assertGreater(result[field], 0, field)
            self.assertLess(result[field], 1.1, field)
        self.assertAlmostEqual(result["overlap"], max(result["s_busy"], result["r_busy"]), places=6)
        for field in ("step_us", "tokens_per_s", "kv_gb_per_s", "round_us", "rounds", "kv_bytes", "wall_ns"):
            self.assertGreater(result[field], 0, field)
        # All sequences are in every round, a third of them in every step.
        self.assertAlmostEqual(result["sampled_tokens"] / result["steps"], 16, delta=1)
        self.assertAlmostEqual(result["rounds"] * 3, result["steps"], delta=1)
        self.assertAlmostEqual(result["tokens_per_s"], result["sampled_tokens"] / result["wall_ns"] * 1e9, delta=1)
        self.assertEqual(len(result["homes"]), 1)
        home = result["homes"][0]
        self.assertEqual(home["pages_used"] + home["pages_free"], home["pages"])
        # The sequences still run, behind 48 + 5 + 100 tokens about.
        self.assertGreaterEqual(home["pages_used"], 48 * 4)
        self.assertTrue(0 <= home["pages_held"] <= home["pages_free"], home)
        text = self.succeed(self.told_of_pages(lambda ran: " KV pages: " in ran.stdout,
                                               lambda: self.tried(*arguments, "--rounds", 20, busy=missed)))
        for needle in ("overlap", "tokens/s", "home 0"):
            self.assertIn(needle, text)
        self.assertRegex(text, r"(?m)^home 0: busy .*; \d+ KV pages: \d+ used, \d+ free, runs hold \d+ unused$")

    def test_bench_step_tries_again_with_a_queue_as_long_as_its_batch(self):
        # Whether such short sequences still run when the window is over, the machine decides.
        result = run("bench", "step", "--model", self.model, "--batch", 512, "--max-queue", 512, "--context", 2, "--rounds", 1,
                     "--max-context", 32, "--kv-gib", 0.1, "-q", *PATIENT)
        if result.returncode != 0:
            self.refused(result, "before the window was over")

    def test_bench_step_of_a_gpu_home(self):
        # It says how fast it reads: of two micro-batches one has all sequences.
        result = json.loads(self.measured(
            "bench", "step", "--model", demo_model(), "--spart", "cuda", "--cuda-module", os.environ["SOFT_GPU_MODULE"],
            "--gpu", 1, "--homes", "gpu", "--micro-batches", 2, "--batch", 4, "--context", 64, "--rounds", 30, "-q", "--json",
            *PATIENT, busy=["before the window was over", "the window caught"]))
        self.assertEqual(result["micro_batches"], 1)
        self.assertAlmostEqual(result["sampled_tokens"] / result["steps"], 4, delta=0.5)
        self.assertAlmostEqual(result["rounds"], result["steps"], delta=1)
        self.assertAlmostEqual(result["round_us"], result["wall_ns"] * 1e-3 / result["steps"], delta=0.1 * result["round_us"])

    def test_an_engine_takes_its_calibration_and_no_other(self):
        file = scratch("calibration.json")
        grid = ["--batches", "1,32", "--contexts", "16,48", "--seconds", 0.05]
        plan = ["--core-plan", "split", "--micro-batches", 2, *PATIENT]
        busy = ["before the window was over", "the window caught", "advanced at once"]
        self.measured("calibrate", "-m", demo_model(), "--out", file, *grid, *plan, "-q", busy=busy[2:])
        bench = ["bench", "step", "-m", demo_model(), "--batch", 32, "--context", 48, "--rounds", 100, "--json"]
        result = json.loads(self.measured(*bench, "--calibration", file, *plan, "-q", busy=busy))
        model = result["step_model"]
        self.assertTrue(model["calibrated"])
        self.assertGreater(model["rounds_foretold_ns"], 0)
        self.assertGreater(model["rounds_ns"], 0)
        for factor in (model["s_factor"], result["homes"][0]["cost_factor"]):
            self.assertTrue(0.7 <= factor <= 1.4, factor)
        learned = json.loads(self.measured(*bench, *plan, "-q", busy=busy))["step_model"]
        self.assertFalse(learned["calibrated"])
        self.assertGreater(learned["rounds_foretold_ns"], 0)

        base = ["generate", "-m", demo_model(), "--prompt-ids", "1,2", "-n", 1, "-q", "--calibration"]
        self.refused(run(*base, file, *plan, "--kv-type", "int8"), "--calibration", file, "kv_type", "int8")
        self.refused(run(*base, file, "--core-plan", "shared"), "--calibration", file, "core_plan", "split", "shared")
        other = scratch("other-shape")
        self.succeed(run("synth", "--shape", "tiny-random", "--layers", 1, "--out", other))
        self.refused(run("generate", "-m", other, "--prompt-ids", "1", "-n", 1, "-q", "--calibration", file, *plan),
                     "--calibration", file, "layers", "1")
        self.refused(run(*base, scratch("nothing.json"), *plan), "--calibration", "nothing.json", "cannot be read")
        half = scratch("half.json")
        half.write_text(file.read_text()[:100])
        self.refused(run(*base, half, *plan), "--calibration", half, "no calibration")

    def test_bad_bench(self):
        base = ["bench", "step", "--model", self.model, "-q"]
        self.refused(run(*base, "--batch", 0), "--batch", "0")
        self.refused(run(*base, "--rounds", -1), "--rounds", "-1")
        self.refused(run(*base, "--batch", 4, "--max-sequences", 2), "--batch: 4", "--max-sequences 2")
        self.refused(run(*base, "--context", 1 << 20), "--context", 1 << 20)
        self.refused(run(*base, "--batch", 64, "--context", 256, "--kv-gib", "0.002", "--max-context", 512), "--kv-gib")


class BenchMemory(ProgramTest):
    SMALL = ["bench", "memory", "--gib", "0.02", "--repetitions", 3]

    def test_json_has_its_fields(self):
        out = json.loads(self.succeed(run(*self.SMALL, "--threads", "1", "--json")))
        self.assertEqual(set(out), {"cpu", "repetitions", "memory", "rows"})
        self.assertTrue(out["cpu"])
        nodes = [memory["node"] for memory in out["memory"]]
        self.assertGreaterEqual(len(nodes), 1)
        for memory in out["memory"]:
            self.assertIn("pages", memory["description"])
            self.assertTrue(0 <= memory["huge_share"] <= 1)
        cores_nodes = {row["cores_node"] for row in out["rows"]}
        seen = [(row["cores_node"], row["memory_node"], row["operation"]) for row in out["rows"]]
        self.assertEqual(sorted(seen), sorted((c, m, o) for c in cores_nodes for m in nodes for o in ("read", "write", "copy")))
        for row in out["rows"]:
            self.assertEqual(row["near"], row["cores_node"] == row["memory_node"])
            self.assertEqual((row["threads"], len(row["cores"])), (1, 1))
            self.assertAlmostEqual(row["bytes"], 0.02 * 2**30, delta=2 << 20)
            self.assertIn(row["streams"], (1, 4))
            rate = row["gb_per_s"]
            self.assertTrue(0 < rate["min"] <= rate["median"] <= rate["max"], rate)

    def test_one_node_and_text(self):
        node = json.loads(self.succeed(run(*self.SMALL, "--threads", "1", "--json")))["rows"][0]["cores_node"]
        text = self.succeed(run(*self.SMALL, "--node", node))
        for operation in ("read", "write", "copy"):
            self.assertRegex(text, rf"(?m)^{node} .* near +1 +{operation} +[\d.]+ +[\d.]+ \[[\d.]+\.\.[\d.]+\]$")
        self.assertIn(f"memory of node {node}: ", text)

    def test_bad_values(self):
        for option, value in [("--gib", "0"), ("--gib", "-1"), ("--gib", "60000"), ("--threads", "0"), ("--threads", "4096"),
                              ("--threads", "1,x"), ("--node", "1000"), ("--node", "x"), ("--repetitions", "0")]:
            with self.subTest(option=option, value=value):
                self.refused(run("bench", "memory", option, value), option, value.split(",")[-1])


class BenchAttention(ProgramTest):
    SMALL = ["bench", "attention", "--gib", "0.02", "--repetitions", 2, "--heads", 8, "--kv-heads", 2, "--head-size", 64]

    def measure(self, *arguments):
        return self.measured(*self.SMALL, *arguments)

    def check(self, out, tokens_bytes):
        """What holds for every result; `tokens_bytes`: K and V of a token in one layer."""
        self.assertEqual(set(out), {
            "cpu", "isa", "kernel", "cores", "threads", "node", "kv_type", "heads", "kv_heads", "head_size", "layers",
            "context", "shared_prefix", "rows", "sequences", "memory", "huge_share", "pages", "pages_used", "pages_held", "held_share",
            "fragmented", "contiguous_kib", "kv_bytes", "step_ms",
            "gb_per_s", "read_gb_per_s", "read_streams", "ratio_to_read", "tokens_per_s", "repetitions", "discarded", "regime"})
        for name in ("ratio_to_read", "step_ms"):
            self.assertTrue(0 < out[name]["min"] <= out[name]["median"] <= out[name]["max"], out[name])
        for name in ("gb_per_s", "read_gb_per_s", "tokens_per_s", "contiguous_kib"):
            self.assertGreater(out[name], 0, name)
        self.assertTrue(1 <= out["repetitions"] <= 2)
        page = 32 * tokens_bytes * out["layers"]
        self.assertAlmostEqual(out["pages"] * page, 0.02 * 2**30, delta=2 << 20)
        self.assertTrue(0 < out["pages_used"] <= out["pages"], out)
        self.assertTrue(0 <= out["pages_held"] <= out["pages"] - out["pages_used"], out)
        self.assertAlmostEqual(out["held_share"], out["pages_held"] / out["pages"])
        tokens = out["sequences"] * (out["context"] - out["shared_prefix"]) + out["shared_prefix"]
        self.assertEqual(out["kv_bytes"], tokens * out["layers"] * tokens_bytes)
        hops = out["sequences"] * out["rows"] * out["layers"]
        self.assertAlmostEqual(out["tokens_per_s"] * out["step_ms"]["median"] / 1e3 / hops, 1, places=6)
        self.assertEqual(len(out["cores"]), out["threads"])
        self.assertIn(out["regime"], ("calm", "busy", None))

    def test_fresh_memory_is_filled_in_order(self):
        out = json.loads(self.measure("--context", 256, "--layers", 3, "--threads", 1, "--json"))
        self.check(out, 2 * 2 * 64 * 2)
        page = 32 * 2 * 2 * 64 * 2
        # All of it, in long pieces.
        self.assertAlmostEqual(out["sequences"], 0.02 * 2**30 / (8 * 3 * page), delta=0.05 * out["sequences"] + 1)
        self.assertGreaterEqual(out["contiguous_kib"], 4 * page / 1024)
        self.assertEqual((out["regime"], out["fragmented"], out["kv_type"]), (None, False, "bf16"))
        self.assertEqual(out["pages_used"], out["sequences"] * 8)

    def test_runs_hold_what_is_not_used_yet(self):
        """Runs of 256 KiB have 16 of these pages. Of 35 pages, 3 begin a third one."""
        out = json.loads(self.measure("--context", 1100, "--sequences", 3, "--json"))
        self.check(out, 2 * 2 * 64 * 2)
        self.assertEqual((out["pages_used"], out["pages_held"]), (3 * 35, 3 * 13))
        text = self.measure("--context", 1100, "--sequences", 3)
        self.assertIn(f"\n{out['pages']} pages: 105 used, 39 held unused ({100 * 39 / out['pages']:.1f} %)\n", text)

    def test_fragmented_memory(self):
        arguments = ["--context", 256, "--kv-type", "f32", "--isa", "avx2", "--json"]
        fresh = json.loads(self.measure(*arguments))
        out = json.loads(self.measure(*arguments, "--fragmented"))
        self.check(out, 2 * 2 * 64 * 4)
        self.assertEqual((out["isa"], out["kv_type"], out["fragmented"]), ("avx2", "f32", True))
        self.assertTrue(0 < out["sequences"] < fresh["sequences"], out)
        self.assertLess(out["contiguous_kib"], fresh["contiguous_kib"])

    def test_several_rows_and_a_context_that_ends_within_a_page(self):
        for rows in (1, 4, 20):  # a decode step, a verification, a chunk
            with self.subTest(rows=rows):
                out = json.loads(self.measure("--context", 65, "--sequences", 3, "--rows", rows, "--json"))
                self.check(out, 2 * 2 * 64 * 2)
                self.assertEqual((out["sequences"], out["rows"], out["context"]), (3, rows, 65))
                # Short sequences hold nothing.
                self.assertEqual((out["pages_used"], out["pages_held"]), (3 * 3, 0))

    def test_a_shared_prefix_counts_once(self):
        out = json.loads(self.measure("--context", 1100, "--shared-prefix", 1024, "--sequences", 20, "--json"))
        self.check(out, 2 * 2 * 64 * 2)
        self.assertEqual((out["sequences"], out["shared_prefix"]), (20, 1024))
        # 32 pages are shared; each sequence has 3 of its own, of a run of 16.
        self.assertEqual((out["pages_used"], out["pages_held"]), (32 + 20 * 3, 20 * 13))

    def test_chunks(self):
        # Pages: 3; 2 and 2 pieces of an open one, each; 20 each, 4 of them of a run of 8.
        for kv_type, chunk, context, sequences, pages in (("bf16", 70, None, None, (3, 0)), ("int4", 40, 33, 3, (12, 0)),
                                                          ("f32", 9, 600, 2, (40, 8))):
            with self.subTest(kv_type=kv_type):
                arguments = ["--chunk", chunk, "--kv-type", kv_type, "--layers", 2, "--json"]
                if context is not None:
                    arguments += ["--context", context, "--sequences", sequences]
                out = json.loads(self.measure(*arguments))
                context, sequences = context or 0, sequences or 1
                self.assertEqual(set(out), {
                    "cpu", "isa", "kernel", "cores", "threads", "node", "kv_type", "heads", "kv_heads", "head_size",
                    "layers", "context", "chunk", "sequences", "memory", "huge_share", "pages", "pages_used", "pages_held",
                    "held_share", "fragmented", "tokens_per_s", "packing", "attention", "repetitions", "discarded"})
                self.assertEqual((out["kv_type"], out["chunk"], out["context"], out["sequences"]),
                                 (kv_type, chunk, context, sequences))
                self.assertEqual((out["pages_used"], out["pages_held"]), pages)
                packing, attention = out["packing"], out["attention"]
                elements = sequences * 2 * chunk * 2 * 2 * 64
                if kv_type != "int4":
                    self.assertEqual(packing["bytes"], elements * 2 * (4 if kv_type == "f32" else 2))
                pairs = sum(context + row + 1 for row in range(chunk))
                self.assertEqual(attention["flop"], sequences * 2 * 8 * 64 * 4 * pairs)
                for summary in (packing["ms"], packing["ratio_to_copy"], attention["ms"], attention["ratio_to_peak"]):
                    self.assertTrue(0 < summary["min"] <= summary["median"] <= summary["max"], out)
                for figure in (packing["gb_per_s"], packing["copy_gb_per_s"], attention["gflop_per_s"],
                               attention["peak_gflop_per_s"], out["tokens_per_s"]):
                    self.assertGreater(figure, 0, out)
                self.assertRegex(attention["instruction"], r"^\w+( \w+)?$")

    def test_text_of_a_chunk(self):
        text = self.measure("--chunk", 64, "--threads", 1)
        for needle in ("1 chunk(s) of 64 tokens behind 0 others", " pages: 2 used, 0 held unused (0.0 %)", "packing: ", "copy test",
                       "attention: ", "GFLOP/s"):
            self.assertIn(needle, text)
        self.assertRegex(text, r"(?m)^ratio to copy [\d.]+ \[[\d.]+\.\.[\d.]+\]$")
        self.assertRegex(text, r"(?m)^ratio to peak [\d.]+ \[[\d.]+\.\.[\d.]+\]$")

    def test_text(self):
        text = self.measure("--cores", min(os.sched_getaffinity(0)), "--context", 128)
        for needle in ("kernel ", "1 thread(s)", "KV memory: ", "pages", "of KV in", "query rows/s", "read test", "not judged"):
            self.assertIn(needle, text)
        self.assertRegex(text, r"(?m)^ratio to read [\d.]+ \[[\d.]+\.\.[\d.]+\], \d repetitions, \d+ discarded$")

    def test_bad_values(self):
        cases = [(["--kv-type", "int3"], "int3"), (["--heads", "0"], "0"), (["--heads", "9", "--kv-heads", "2"], "9"),
                 (["--kv-heads", "0"], "0"), (["--head-size", "100"], "100"), (["--head-size", "512"], "512"),
                 (["--layers", "0"], "0"), (["--context", "0"], "0"), (["--rows", "129", "--context", "128"], "128"),
                 (["--chunk", "8"], "8"), (["--chunk", "65537"], "65537"), (["--rows", "2", "--chunk", "64"], "--chunk"),
                 (["--chunk", "64", "--shared-prefix", "512"], "--shared-prefix"), (["--gib", "0.02", "--chunk", "60000"], "60000"),
                 (["--shared-prefix", "500"], "500"), (["--shared-prefix", "512", "--rows", "16"], "--rows 16"),
                 (["--shared-prefix", "1024", "--context", "1024"], "1024"),
                 (["--sequences", "-1"], "-1"), (["--sequences", "60000"], "60000"), (["--gib", "0"], "0"), (["--gib", "60000"], "60000"),
                 (["--threads", "4000"], "4000"), (["--cores", "99999"], "99999"), (["--cores", "0-x"], "0-x"),
                 (["--isa", "neon"], "neon"), (["--repetitions", "0"], "0")]
        for arguments, value in cases:
            with self.subTest(arguments=arguments):
                self.refused(run("bench", "attention", "--gib", "0.02", *arguments) if arguments[0] != "--gib" else
                             run("bench", "attention", *arguments), arguments[0], value)
        core = min(os.sched_getaffinity(0))
        self.refused(run("bench", "attention", "--gib", "0.02", "--cores", core, "--threads", 3), "--threads", "3", core)
        self.refused(run("bench", "attention", "--gib", "0.002", "--context", 4096), "--gib", "0.002", "4096")
        # Fragmented memory has about half of the room.
        self.refused(run(*self.SMALL, "--context", 1000, "--sequences", 40, "--fragmented"), "--sequences", "40", "1000")


class BenchGemm(ProgramTest):
    SMALL = ["bench", "gemm", "--gib", "0.02", "--inputs", 256, "--outputs", 512, "--repetitions", 2]

    def test_json(self):
        out = json.loads(self.measured(*self.SMALL, "--rows", "1,17", "--threads", 1, "--json"))
        self.assertEqual(set(out), {"cpu", "isa", "type", "cores", "threads", "node", "inputs", "outputs", "matrices",
                                    "weight_bytes", "memory", "huge_share", "read_streams", "instruction", "rows"})
        self.assertEqual((out["type"], out["inputs"], out["outputs"], out["threads"]), ("bf16", 256, 512, 1))
        self.assertEqual(out["weight_bytes"], out["matrices"] * 256 * 512 * 2)
        self.assertEqual(out["matrices"], int(0.02 * 2**30) // (256 * 512 * 2))
        self.assertEqual({row["rows"] for row in out["rows"]}, {1, 17})
        for row in out["rows"]:
            if "gb_per_s" not in row:  # a busy machine
                self.assertGreater(row["discarded"], 0)
                continue
            # Each weight, of two bytes, is multiplied and added once for each row.
            self.assertAlmostEqual(row["gflop_per_s"] / (row["gb_per_s"] * row["rows"]), 1, places=2)
            self.assertGreater(row["read_gb_per_s"], 0)
            self.assertGreater(row["peak_gflop_per_s"], 0)

    def test_text_names_the_kernels(self):
        text = self.measured(*self.SMALL, "--rows", 3, "--type", "f32", "--isa", "avx2")
        for needle in ("avx2-f32", "512 x 256 in f32", "ratio to read", "GFLOP/s"):
            self.assertIn(needle, text)
        self.assertNotIn("oneDNN", text)

    def test_bad_values(self):
        cases = [(["--type", "int8"], "int8"), (["--rows", "0"], "0"), (["--rows", "1,x"], "x"), (["--inputs", "0"], "0"),
                 (["--outputs", "0"], "0"), (["--gib", "0.001", "--outputs", "65536"], "536870912"),
                 (["--rows", "4096", "--inputs", "1", "--outputs", "1048576"], "4096"), (["--gib", "60000"], "60000"), (["--threads", "4000"], "4000"),
                 (["--isa", "neon"], "neon"), (["--repetitions", "0"], "0")]
        for arguments, value in cases:
            with self.subTest(arguments=arguments):
                self.refused(run("bench", "gemm", *arguments), arguments[0], value)


class BenchGpu(ProgramTest):
    """On a GPU in software: what is measured of it means nothing, but it is all there."""

    @classmethod
    def setUpClass(cls):
        cls.ON_SOFTWARE = ["bench", "gpu", "--cuda-module", os.environ["SOFT_GPU_MODULE"], "--compute", "f32", "-q"]

    def test_json(self):
        config = json.loads(pathlib.Path(demo_model(), "config.json").read_text())
        out = json.loads(self.succeed(run(*self.ON_SOFTWARE, "--model", demo_model(), "--batch", "1,5", "--repetitions", 4, "--json")))
        self.assertEqual(out["layers"], config["num_hidden_layers"])
        self.assertIn("software GPU", out["s_part"])
        self.assertRegex(out["s_part"], r", weights \d+\.\d\d GiB at \d+\.\d GB/s, ")
        self.assertEqual([batch["batch"] for batch in out["batches"]], [1, 5])
        head = config["hidden_size"] // config["num_attention_heads"]
        for batch in out["batches"]:
            # A row there is q, k and v; back it is o. All in four bytes.
            there = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * head * 4
            self.assertEqual(batch["hop_bytes"], batch["batch"] * there)
            self.assertEqual(batch["reply_bytes"], batch["batch"] * config["num_attention_heads"] * head * 4)
            for way in ("idle_us", "hop_us"):
                # Whole steps, more than the repetitions, as far as there was time for them.
                self.assertEqual(batch[way]["count"] % out["layers"], 0)
                self.assertLess(batch[way]["count"], 1000 + out["layers"])
                self.assertEqual(batch[way]["p99"] is None, batch[way]["count"] < 500, batch[way])
            for way in ("there_us", "back_us"):
                self.assertTrue(all(batch[way][by]["min"] > 0 for by in ("kernel", "copy")), batch[way])
            self.assertGreater(batch["gemms_beside_waits"]["min"], 0)
            for figure in ("near_step_us", "near_step_over_gemms"):
                self.assertGreater(batch[figure]["min"], 0)
            # A hop is what is idle, and more. Under sanitizers there are too few of them to say so.
            if batch["hop_us"]["p50"] is not None and batch["idle_us"]["p50"] is not None:
                self.assertGreaterEqual(batch["hop_us"]["p50"], batch["idle_us"]["p50"])
            # Each weight, of four bytes, is multiplied and added once for each row.
            flop_per_byte = batch["gemms_tflop_per_s"] * 1e3 / batch["gemms_gb_per_s"]
            self.assertAlmostEqual(flop_per_byte, 2 * batch["batch"] / 4, places=6)
            self.assertAlmostEqual(batch["gemms_gb_per_s"], out["weight_bytes"] / batch["gemms_us"]["median"] * 1e-3, places=6)

    def test_one_micro_batch(self):
        out = json.loads(self.succeed(run(*self.ON_SOFTWARE, "--model", demo_model(), "--batch", "2", "--repetitions", 1,
                                          "--micro-batches", 1, "--json")))
        self.assertIsNone(out["batches"][0]["gemms_beside_waits"], "nobody waits")

    def test_text(self):
        text = self.succeed(run(*self.ON_SOFTWARE, "--model", demo_model(), "--batch", "2", "--repetitions", 1))
        for needle in ("software GPU", "its GEMMs alone", "GEMMs beside waits", "hop p50", "KiB there, back", "by the copy engine"):
            self.assertIn(needle, text)

    def test_bad_values(self):
        self.refused(run("bench", "gpu"), "--model")
        self.refused(run(*self.ON_SOFTWARE, "--model", demo_model(), "--batch", "0"), "--batch", "0")
        self.refused(run(*self.ON_SOFTWARE, "--model", demo_model(), "--repetitions", "0"), "--repetitions", "0")
        self.refused(run("bench", "gpu", "--model", demo_model(), "--cuda-module", "/no/such.so"), "/no/such.so does not exist")

    def test_no_module(self):
        """Of a program that lies where none does, both places are named."""
        program = scratch("no_module") / "bin/fastdecode"
        program.parent.mkdir(parents=True)
        shutil.copy(PROGRAM, program)
        result = run("bench", "gpu", "--model", demo_model(), "-q", executable=program)
        self.refused(result, program.parent / "libfastdecode_cuda.so",
                     program.parent.parent / "lib/fastdecode/libfastdecode_cuda.so")


class BenchGpuHome(ProgramTest):
    """On a GPU in software, as BenchGpu."""
    def bench(self, *arguments):
        return run("bench", "gpu-home", "--cuda-module", os.environ["SOFT_GPU_MODULE"], "-q", "--model", demo_model(), *arguments)

    def test_json(self):
        config = json.loads(pathlib.Path(demo_model(), "config.json").read_text())
        out = json.loads(self.succeed(self.bench("--compute", "bf16", "--batch", "1,3", "--context", "32,33", "--prompt", "40,1",
                                                 "--chunk", 16, "--repetitions", 2, "--json")))
        self.assertEqual((out["layers"], out["chunk"]), (config["num_hidden_layers"], 16))
        self.assertEqual([(row["batch"], row["context"]) for row in out["attention"]], [(1, 32), (3, 32), (1, 33), (3, 33)])
        head = config["hidden_size"] // config["num_attention_heads"]
        page = 32 * 2 * config["num_key_value_heads"] * head * 2  # tokens of k and v in two bytes
        for row in out["attention"]:
            self.assertEqual(row["kv_bytes"], row["batch"] * (1 if row["context"] == 32 else 2) * page * out["layers"])
            self.assertAlmostEqual(row["kv_gb_per_s"], row["kv_bytes"] / row["us"]["median"] * 1e-3, places=9)
            self.assertIsNone(row["of_copies"], "a GPU in software says nothing of its memory")
        self.assertEqual([row["tokens"] for row in out["prompts"]], [40, 1])
        for row in out["prompts"]:
            self.assertGreater(row["us"]["min"], 0)
            share = row["gemms_over_prompt"]
            self.assertTrue(0 < share["min"] <= share["median"] <= share["max"], share)
            self.assertGreater(row["pushed_us"]["min"], 0)
            self.assertGreaterEqual(row["push_cost"]["max"], row["pushed_us"]["min"] / row["us"]["max"] - 1)

    def test_text(self):
        text = self.succeed(self.bench("--compute", "f32", "--batch", 2, "--context", 40, "--prompt", 20, "--repetitions", 1))
        for needle in ("software GPU", "of copies", "prompts, in chunks of 256", "GEMMs / prompt", "pushed to another home"):
            self.assertIn(needle, text)

    def test_bad_values(self):
        self.refused(self.bench("--context", 0), "--context", "0")
        self.refused(self.bench("--context", 100000), "error: --context, --prompt: 100000 is more than", "512")
        self.refused(self.bench("--context", 100, "--prompt", 100, "--kv-type", "int4"), "--kv-type", "int8")
        self.refused(self.bench("--context", 100, "--prompt", 100, "--gpu-kv-gib", 0.001, "--batch", 64), "the GPU's home", "pages are free")


class BenchAccuracy(ProgramTest):
    TEXT = "Once there was a kind girl whose name was Greta. She liked to watch the clouds."
    # The same token first.
    WANTED_PERCENT = {"bf16": 99, "fp16": 99, "int8": 99, "int4": 97}

    def accuracy(self, *arguments, model=None):
        return run("bench", "accuracy", "--model", model or demo_model(), "--kv-gib", "0.05", "-q", *PATIENT, *arguments)

    def text_file(self, text, name="accuracy.txt"):
        path = SCRATCH / name
        path.write_text(text)
        return path

    def by_type(self, *arguments, **more):
        """The whole result, and its rows by type of KV, after what holds for all of them."""
        out = json.loads(self.succeed(self.accuracy("--json", *arguments, **more)))
        self.assertEqual(set(out), {"model", "compute", "max_context", "vocab", "texts_from", "texts", "reference", "types"})
        self.assertEqual(set(out["reference"]), {"compute", "kv_type", "logit_deviation", "perplexity"})
        self.assertEqual((out["reference"]["compute"], out["reference"]["kv_type"]), ("f32", "f32"))
        self.assertGreater(out["reference"]["logit_deviation"], 0)
        for row in out["types"]:
            self.assertEqual(set(row), {"kv_type", "positions", "logit_error", "logit_error_of_deviation", "kl_nats",
                                        "top1_percent", "perplexity", "perplexity_ratio", "machine"})
            self.assertEqual(row["positions"], out["types"][0]["positions"])
            for name in ("logit_error", "logit_error_of_deviation", "kl_nats"):
                self.assertTrue(0 <= row[name]["mean"] <= row[name]["max"], row)
            for name in ("mean", "max"):
                self.assertAlmostEqual(row["logit_error_of_deviation"][name] * out["reference"]["logit_deviation"],
                                       row["logit_error"][name], places=9)
            self.assertTrue(0 <= row["top1_percent"] <= 100)
            self.assertAlmostEqual(row["perplexity_ratio"] * out["reference"]["perplexity"], row["perplexity"], places=6)
            self.assertIn("S-Part: cpu, ", row["machine"])
        return out, {row["kv_type"]: row for row in out["types"]}

    def check_exact(self, row):
        self.assertEqual((row["logit_error"], row["kl_nats"], row["top1_percent"], row["perplexity_ratio"]),
                         ({"mean": 0, "max": 0}, {"mean": 0, "max": 0}, 100, 1))

    def test_every_type_on_stories_of_the_model(self):
        out, rows = self.by_type("--samples", 4)
        self.assertEqual((out["texts"], out["texts_from"], out["vocab"]), (4, "the reference's own", 1024))
        self.check_exact(rows["f32"])
        self.assertGreater(rows["f32"]["positions"], 200)
        for name, row in rows.items():
            if name == "f32":
                continue
            self.assertTrue(0 < row["logit_error_of_deviation"]["mean"] < 0.5, row)
            self.assertTrue(0 < row["kl_nats"]["mean"] < 0.5, row)
            self.assertGreaterEqual(row["top1_percent"], self.WANTED_PERCENT[name], name)
            self.assertLess(abs(row["perplexity_ratio"] - 1), 0.01)
        # Three bits are a factor of eight.
        self.assertGreater(rows["bf16"]["logit_error"]["mean"], 4 * rows["fp16"]["logit_error"]["mean"])
        self.assertLess(rows["bf16"]["logit_error_of_deviation"]["mean"], 0.01)
        again, _ = self.by_type("--samples", 4, "--kv-types", "bf16,f32")
        self.assertEqual([row["kv_type"] for row in again["types"]], ["bf16", "f32"])
        self.assertEqual(again["types"][0]["logit_error"], rows["bf16"]["logit_error"], "stories differ, or results do")

    def test_figures_are_those_of_the_logits(self):
        """The same statistics from the logits that generate writes, in Python."""
        path = self.text_file(self.TEXT)
        logits = {}
        for kv_type in ("f32", "bf16"):
            npy = scratch(f"accuracy-{kv_type}.npy")
            (answer,) = self.answers("-f", path, "-n", 1, "--temp", 0, "--exact", "--batch-invariant", "--kv-type", kv_type,
                                     "--logits", npy)
            data = npy.read_bytes()
            (header_bytes,) = struct.unpack("<H", data[8:10])
            values = array.array("f", data[10 + header_bytes:])
            vocab = len(values) // answer["prompt_tokens"]
            logits[kv_type] = [values[i * vocab:(i + 1) * vocab] for i in range(answer["prompt_tokens"])]
        _, rows = self.by_type("--text", path)
        row = rows["bf16"]
        self.assertEqual(row["positions"], len(logits["f32"]) - 1)
        # Neither the last token's logits nor the text's end are used: that predicts nothing of the text.
        pairs = list(zip(logits["f32"], logits["bf16"]))[:-1]

        def log_probabilities(values):
            largest = max(values)
            log_sum = largest + math.log(math.fsum(math.exp(v - largest) for v in values))
            return [v - log_sum for v in values]

        def top(values):
            return max(range(len(values)), key=values.__getitem__)

        errors, kls = [], []
        for exact, other in pairs:
            errors += [abs(a - b) for a, b in zip(exact, other)]
            log_p, log_q = log_probabilities(exact), log_probabilities(other)
            kls.append(math.fsum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q)))
        self.assertAlmostEqual(row["logit_error"]["mean"], math.fsum(errors) / len(errors), places=12)
        self.assertEqual(row["logit_error"]["max"], max(errors))
        self.assertAlmostEqual(row["kl_nats"]["mean"], math.fsum(kls) / len(kls), places=12)
        self.assertAlmostEqual(row["kl_nats"]["max"], max(kls), places=12)
        self.assertAlmostEqual(row["top1_percent"], 100 * sum(top(a) == top(b) for a, b in pairs) / len(pairs), places=9)

    def test_perplexity_is_that_of_decode_steps(self):
        """An answer's log probabilities, of decode steps with K and V as they were stored then, with each type."""
        _, rows = self.by_type("--text", self.text_file(self.TEXT))
        for kv_type in rows:
            with self.subTest(kv_type=kv_type):
                (answer,) = self.answers("-p", "", "-n", 80, "--temp", 0, "--exact", "--batch-invariant", "--logprobs", 0,
                                         "--kv-type", kv_type)
                self.assertEqual(answer["generated_tokens"], 80)
                _, of_answer = self.by_type("--text", self.text_file(answer["text"]), "--kv-types", kv_type)
                self.assertEqual(of_answer[kv_type]["positions"], 80, "the text does not have the tokens that it was made of")
                surprise = -sum(entry["logprob"] for entry in answer["logprobs"]) / 80
                self.assertAlmostEqual(of_answer[kv_type]["perplexity"], math.exp(surprise), places=6)

    def test_groups_of_texts_give_the_same_figures(self):
        whole, _ = self.by_type("--samples", 3)
        groups, _ = self.by_type("--samples", 3, "--logits-gib", 0)
        self.assertEqual(whole["reference"], groups["reference"])
        for one, other in zip(whole["types"], groups["types"]):
            self.assertEqual({**one, "machine": ""}, {**other, "machine": ""})

    def test_outlier_channels_in_k(self):
        """Floating-point types do not care for them, nor does a scale for each channel; one for all of a token's does."""
        rows = {}
        for name, outliers in (("accuracy-plain", "0"), ("accuracy-outliers", "4:64")):
            folder = scratch(name)
            self.succeed(run("synth", "--shape", "tiny-random", "--out", folder, "--k-outliers", outliers))
            rows[name] = self.by_type("--samples", 2, "--max-tokens", 200, model=folder)[1]
        plain, planted = rows["accuracy-plain"], rows["accuracy-outliers"]
        for kv_type in ("f32", "bf16", "fp16"):
            self.assertEqual({**plain[kv_type], "machine": ""}, {**planted[kv_type], "machine": ""})
        error = {kv_type: (plain[kv_type]["logit_error"]["mean"], planted[kv_type]["logit_error"]["mean"])
                 for kv_type in ("int8", "int4")}
        self.assertGreater(error["int8"][1], 4 * error["int8"][0])
        self.assertLess(error["int4"][1], 1.05 * error["int4"][0])
        self.assertGreater(error["int8"][1], error["int4"][1], "8 bits a token are no better than 4 bits a channel")

    def test_long_texts_are_cut_into_pieces(self):
        tokens = self.by_type("--text", self.text_file(self.TEXT * 8), "--kv-types", "f32")[1]["f32"]["positions"]
        out, rows = self.by_type("--text", self.text_file(self.TEXT * 8), "--kv-types", "f32,fp16", "--max-context", 32)
        # Each piece begins with bos, and all of its other tokens are predicted.
        self.assertEqual((out["texts"], rows["f32"]["positions"], out["max_context"]), (-(-tokens // 31), tokens, 32))
        self.check_exact(rows["f32"])
        out, rows = self.by_type("--text", self.text_file(self.TEXT * 8), "--text", self.text_file("Anna", "accuracy2.txt"),
                                 "--kv-types", "f32", "--max-tokens", 20)
        self.assertEqual(out["texts"], 2)
        self.assertTrue(21 <= rows["f32"]["positions"] <= 25, rows)

    def test_compute_type(self):
        out, rows = self.by_type("--samples", 4, "--compute", "bf16")
        self.assertEqual(out["compute"], "bf16")
        self.assertIn("S-Part: cpu, bf16", rows["f32"]["machine"])
        self.assertGreater(rows["f32"]["logit_error"]["mean"], 0, "the reference computes in f32")
        for name, percent in self.WANTED_PERCENT.items():
            self.assertGreaterEqual(rows[name]["top1_percent"], percent, name)

    def test_without_a_tokenizer_and_as_a_table(self):
        out, rows = self.by_type("--samples", 2, "--max-tokens", 100, "--kv-types", "f32,bf16", model=golden_model())
        self.assertEqual((out["texts_from"], out["texts"], rows["bf16"]["positions"]), ("random tokens", 2, 198))
        self.check_exact(rows["f32"])
        text = self.succeed(self.accuracy("--samples", 2, "--max-tokens", 100, "--kv-types", "f32,bf16", model=golden_model()))
        self.assertIn("2 texts (random tokens), 198 positions", text)
        self.assertRegex(text, r"(?m)^f32 +0 +0 +0 +0 +100\.000 +[\d.]+ +1\.00000$")
        self.assertRegex(text, r"(?m)^bf16( +[\d.e-]+){4} +[\d.]+ +[\d.]+ +[\d.]+$")

    def test_bad_input(self):
        self.refused(self.accuracy("--text", SCRATCH / "none.txt"), SCRATCH / "none.txt", "No such file")
        self.refused(self.accuracy("--text", SCRATCH), SCRATCH, "directory")
        self.refused(self.accuracy("--text", self.text_file("", "empty.txt")), "empty.txt", "0 token(s)", "too few")
        self.refused(self.accuracy("--kv-types", "f32,int3"), "--kv-types", "'int3'", "f32, bf16, fp16")
        self.refused(self.accuracy("--kv-types", ""), "--kv-types", "''")
        self.refused(self.accuracy("--kv-types", "f32,,int8"), "--kv-types", "''")
        for option, value in [("--samples", "0"), ("--max-tokens", "-1"), ("--logits-gib", "-1"), ("--compute", "int4"), ("--max-context", "100000")]:
            with self.subTest(option=option):
                self.refused(self.accuracy(option, value), option, value)
        self.refused(self.accuracy("--samples", 1, "--max-tokens", 1, model=golden_model()), "no token to predict")
        self.refused(self.accuracy("--text", self.text_file(self.TEXT), model=golden_model()), "tokenizer.json")
        self.refused(self.accuracy(model=SCRATCH / "no-model"), SCRATCH / "no-model")
        self.refused(run("bench", "accuracy", "-q"), "--model")


# ------------------------------------------------------------------------------------------------- help and completion


def option_table():
    """The options of every command, as the completion script knows them."""
    script = run("completion").stdout
    table = {}
    for path, words in re.findall(r'^    \["fastdecode ?(.*)"\]="(.*)"$', script, flags=re.M):
        table[path] = words.split()
    return table


class Help(ProgramTest):
    COMMANDS = ["", "generate", "serve", "worker", "synth", "bench", "bench step", "bench memory", "bench attention", "bench gemm", "bench gpu", "bench gpu-home", "bench accuracy", "bench serve", "calibrate", "latency",
                "chat", "inspect", "template", "latency step", "latency attach", "latency kernel", "latency fabric", "latency hiccup", "latency clock", "latency compare",
                "doctor", "completion"]

    def test_help_of_every_command(self):
        for command in self.COMMANDS:
            with self.subTest(command=command):
                text = self.succeed(run(*command.split(), "--help"))
                self.assertIn("Usage: fastdecode", text)
                for word in option_table()[command]:
                    self.assertIn(word, text)

    def test_every_command_is_tested(self):
        self.assertEqual(sorted(option_table()), sorted(self.COMMANDS))

    def test_version(self):
        self.assertRegex(self.succeed(run("--version")), r"^fastdecode \d+\.\d+\.\d+\n$")

    def test_completion_in_bash(self):
        def complete(*words):
            quoted = " ".join(f"'{w}'" for w in words)
            script = (f'set -eu; source <("{PROGRAM}" completion); complete -p fastdecode >/dev/null; '
                      f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _fastdecode; echo "${{COMPREPLY[@]}}"')
            result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            return result.stdout.split()

        self.assertEqual(complete("fastdecode", "ge"), ["generate"])
        self.assertEqual(complete("fastdecode", "bench", ""), ["--help", "step", "memory", "attention", "gemm", "gpu", "gpu-home", "accuracy", "serve"])
        self.assertEqual(complete("fastdecode", "generate", "--micro"), ["--micro-batches"])
        self.assertEqual(complete("fastdecode", "bench", "step", "--ro"), ["--rounds"])
        self.assertEqual(complete("fastdecode", "latency", "attach", "123", "--sec"), ["--seconds"])
        self.assertEqual(complete("fastdecode", "latency", "compare", "a$(exit 1)", "b", "--thr"), ["--threshold"])

    def test_man_page_has_every_option(self):
        text = (ROOT / "docs/fastdecode.1").read_text().replace("\\-", "-")
        sections = re.split(r'^\.SH "?([A-Z ]+)"?$', text, flags=re.M)
        self.assertIn("EXIT STATUS", sections)
        known = set()
        for command, words in option_table().items():
            for word in words:
                known.add(word)
                self.assertRegex(text, rf"(?m)(^|[\s,]){re.escape(word)}($|[\s,=.])", f"fastdecode {command}")
        for word in re.findall(r"(?m)^\.(?:BR|B|BI|TP).*?(--[a-z][a-z-]+)", text):
            self.assertIn(word, known, "the man page has an option that the program has not")


class LatencyFabric(ProgramTest):
    SIZES = ["--bytes-min", 64, "--bytes-max", 16384, "--rounds", 50, "--json"]

    def check(self, result, peer):
        out = json.loads(self.succeed(result))
        self.assertIn(peer, out["peer"])
        shapes = [(row["shape"], row["bytes"]) for row in out["rows"]]
        self.assertEqual(shapes, [(shape, 64 << i) for i in range(9) for shape in ("one-way", "hop")] +
                         [("bulk", 64 << i) for i in range(9)])
        for row in out["rows"]:
            self.assertEqual(row["rounds"], 10 if row["shape"] == "bulk" else 50)
            known = ["p50_us"] if row["shape"] == "bulk" else ["p50_us", "p90_us"]
            self.assertEqual([name for name in ("p50_us", "p90_us", "p99_us", "p999_us") if row[name] is not None], known)
            times = [row[name] for name in ("min_us", *known, "max_us")]
            self.assertEqual(times, sorted(times))
            self.assertGreater(row["min_us"], 0)
            back = {"one-way": row["bytes"], "hop": row["bytes"] * 2 // 3 // 8 * 8, "bulk": 0}
            self.assertEqual(row["reply_bytes"], back[row["shape"]])

    def test_two_threads(self):
        self.check(run("latency", "fabric", *self.SIZES), "two threads of this process")

    def test_columns_of_perftest(self):
        lines = self.succeed(run("latency", "fabric", *self.SIZES[:-1], "--format", "perftest")).splitlines()
        self.assertTrue(lines[0].startswith(" #bytes"))
        self.assertEqual([line for line in lines if line.startswith("# ")], ["# one-way", "# hop", "# bulk"])
        rows = [line.split() for line in lines[2:11]]
        self.assertEqual([int(row[0]) for row in rows], [64 << i for i in range(9)])
        for _, rounds, least, largest, median, mean, *_ in rows:
            self.assertEqual(int(rounds), 50)
            self.assertLessEqual(float(least), float(median))
            self.assertLessEqual(float(least), float(mean))
            self.assertLessEqual(max(float(median), float(mean)), float(largest))

    def test_two_processes(self):
        path = SCRATCH / "fabric.sock"
        far = subprocess.Popen([PROGRAM, "latency", "fabric", "--listen", f"unix:{path}"], stderr=subprocess.PIPE, text=True,
                               preexec_fn=as_user_with_default_signals)
        while "listens on" not in far.stderr.readline():  # it may find an engine of other tests on its core
            self.assertIsNone(far.poll())
        self.check(run("latency", "fabric", "--peer", f"unix:{path}", *self.SIZES), str(path))
        self.refused(generate("-p", "A", "--homes", f"unix:{path}"), "latency fabric")
        far.send_signal(signal.SIGTERM)
        far.communicate(timeout=LIMIT_S)
        self.assertEqual(far.returncode, 0)

    def test_bad_options(self):
        for arguments, needles in [
            (["--bytes-min", 4096, "--bytes-max", 64], ("--bytes-min", "4096")), (["--bytes-max", 4], ("--bytes-max", "4")),
            (["--peer", "moon"], ("--peer", "'moon'")), (["--listen", "local"], ("--listen", "'local'")),
            (["--peer", f"unix:{SCRATCH}/none"], (f"{SCRATCH}/none",)), (["--peer", "localhost:1"], ("--secret-file",)),
            (["--gpu", 0], ("--gpu", "HOST:PORT")), (["--gpu", 0, "--touch"], ("--touch", "--gpu")),
            (["--gpu", 0, "--listen", "localhost:1"], ("--gpu", "--listen")), (["--cores", "9999"], ("--cores", "9999")),
            (["--cores", "-1"], ("--cores", "'-1'")), (["--listen", "localhost:1", "--peer", "local"], ("--listen", "--peer")),
            (["--format", "text", "--json"], ("--format", "--json"))]:
            with self.subTest(arguments=arguments):
                self.refused(run("latency", "fabric", *arguments), *needles)
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            self.refused(run("latency", "fabric", "--peer", f"unix:{SCRATCH}/none", "--cores", f"{cores[0]},{cores[1]}"), "--cores", "2")

    def far_end(self, path, core):
        """A far end on `core`, which had it to itself when it began; None where an engine of other tests was there."""
        far = subprocess.Popen([PROGRAM, "latency", "fabric", "--listen", f"unix:{path}", "--cores", str(core)],
                               stderr=subprocess.PIPE, text=True, preexec_fn=as_user_with_default_signals)
        self.addCleanup(far.stderr.close)
        self.addCleanup(far.wait)
        self.addCleanup(far.kill)
        alone = True
        while "listens on" not in (line := far.stderr.readline()):
            self.assertIsNone(far.poll())
            alone = alone and "another process of FastDecode" not in line
        if alone:
            return far
        far.kill()
        far.wait()
        return None

    def test_both_ends_on_one_core(self):
        path, core = SCRATCH / "fabric-core.sock", min(os.sched_getaffinity(0))
        end = time.monotonic() + LIMIT_S
        while (far := self.far_end(path, core)) is None:
            self.assertLess(time.monotonic(), end)
            path.unlink(missing_ok=True)
        near = run("latency", "fabric", "--peer", f"unix:{path}", "--cores", core, "--rounds", 1, "--bytes-max", 8)
        self.succeed(near)
        self.assertIn(f"another process of FastDecode is on core {core} too", near.stderr)
        far.send_signal(signal.SIGTERM)
        self.assertEqual(far.wait(LIMIT_S), 0)


class Doctor(ProgramTest):
    @unittest.skipIf(os.cpu_count() < 2, "there is one core")
    def test_openmp_that_binds_the_program_is_warned_of(self):
        one_cpu = str(min(os.sched_getaffinity(0)))
        for variable, value in (("OMP_PROC_BIND", "true"), ("OMP_PLACES", "threads"), ("GOMP_CPU_AFFINITY", one_cpu)):
            bound = {**os.environ, variable: value}
            result = generate("-p", PROMPT, "-n", 1, env=bound)
            self.succeed(result)
            self.assertRegex(result.stderr, r"warning: this process may use only core\(s\) .* unset .*" + variable)
            checks = json.loads(run("doctor", "--json", env=bound).stdout)["checks"]
            cores = next(c for c in checks if c["name"] == "CPU set")
            self.assertEqual(cores["status"], "warning")
            self.assertIn(variable, cores["advice"])

    def test_exit_status_says_whether_there_is_an_error(self):
        result = run("doctor", "--json")
        checks = json.loads(result.stdout)["checks"]
        self.assertEqual({c["group"] for c in checks}, {"CPU", "memory", "fabric", "GPU"})
        for check in checks:
            self.assertEqual(set(check), {"group", "name", "status", "found", "advice"})
            self.assertIn(check["status"], ("ok", "unknown", "warning", "error"))
        errors = any(c["status"] == "error" for c in checks)
        self.assertEqual(result.returncode, 1 if errors else 0)
        self.assertEqual("fastdecode: error: " in result.stderr, errors)

    def test_text_has_every_check_and_no_colours_in_a_pipe(self):
        text = run("doctor").stdout
        self.assertNotIn("\033", text)
        for check in json.loads(run("doctor", "--json").stdout)["checks"]:
            self.assertRegex(text, rf"(?m)^  {check['status']} +{re.escape(check['name'])}  ")


# ----------------------------------------------------------------------------------------------------------- bad input


class OtherHosts(ProgramTest):
    """What is refused before any RDMA device is needed."""

    def secret(self, name, text="0123456789abcdef0123456789abcdef", mode=0o600):
        path = SCRATCH / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def test_secret_files(self):
        for arguments, needles in [
            ([], ("--secret-file", "127.0.0.1:1")), (["--secret-file", SCRATCH / "no-such"], ("--secret-file", "no-such")),
            (["--secret-file", self.secret("open", mode=0o644)], ("--secret-file", "open", "644")),
            (["--secret-file", self.secret("short", text="abc")], ("--secret-file", "short", "3")),
            (["--secret-file", SCRATCH], ("--secret-file", str(SCRATCH)))]:
            with self.subTest(arguments=arguments):
                self.refused(generate("-p", "A", "--homes", "127.0.0.1:1", *arguments), *needles)
                self.refused(run("worker", "--listen", "127.0.0.1:1", "--kv-gib", "0.02", *arguments),
                             *needles)

    def test_fabric_options(self):
        for option, value in [("--rdma-mtu", "1000"), ("--gid-index", "-2"), ("--traffic-class", "256"), ("--service-level", "16"), ("--kv-type", "int3"),
                              ("--peer-timeout-ms", "0"), ("--rdma-port", "x"), ("--homes", "host:"), ("--homes", "host:99999")]:
            with self.subTest(option=option):
                self.refused(generate("-p", "A", option, value), option, value)
        self.refused(run("generate", "-m", demo_model(), "-p", "A", "--homes", "127.0.0.1:1", "--hop-timeout-ms", 299),
                     "--hop-timeout-ms", "299", "300")


class BadOptions(ProgramTest):
    def test_unknown_options_and_commands(self):
        self.refused(run("generate", "--modle", "x", "-p", "A"), "--modle", "did you mean --model?")
        self.refused(run("generate", "--max-token=3", "-p", "A"), "--max-token", "did you mean --max-tokens?")
        self.assertNotIn("did you mean", self.refused(run("generate", "--zzzzzzz"), "--zzzzzzz"))
        self.refused(run("gen"), "gen", "did you mean generate?")
        self.refused(run("-v", "generate"), "generate: -v has to stand behind 'generate'")
        self.assertNotIn("did you mean", self.refused(run("latency", "attach", "-x"), "latency attach: unknown option -x"))
        self.assertNotIn("did you mean", self.refused(run("latency", "attach", "--"), "latency attach: target is required"))
        self.refused(run("bench", "steps"), "steps", "did you mean step?")
        self.refused(run("generate", "stray"), "stray")
        self.refused(run(), "generate", "worker", "synth", "bench")
        self.refused(run("bench"), "step")

    def test_bad_values(self):
        cases = [(["--max-tokens", "-5"], "-5"), (["--top-k", "1.5"], "1.5"), (["--temperature", "hot"], "hot"),
                 (["--poll", "fast"], "'fast'"), (["--compute", "int4"], "'int4'"), (["--isa", "neon"], "'neon'"),
                 (["--micro-batches", "0"], "'0'"), (["--core-plan", "half"], "'half'"), (["--kv-gib", "much"], "'much'"), (["--homes", "moon"], "'moon'"),
                 (["--s-cores", "0-x"], "0-x"), (["--r-cores", "99999"], "99999"),
                 (["--fault", "drop=2"], "2"), (["--logit-bias", "x"], "'x'"), (["--prompt-ids", "1,x"], "'x'"), (["--prompt-ids", "1,2,"], "''"),
                 (["--prompt-ids", ""], "--prompt-ids"), (["--max-context", "9999999"], "9999999"),
                 (["--batch-invariant=maybe"], "'maybe'"), (["--need-text=maybe"], "'maybe'"),
                 (["--prefix-cache", "maybe"], "'maybe'"), (["--choices", "-1"], "-1"), (["--choices", "many"], "many")]
        for arguments, value in cases:
            with self.subTest(arguments=arguments):
                option = arguments[0].split("=")[0]
                self.refused(run("generate", "--model", demo_model(), "-q", "-p", "A", *arguments), option, value)
        self.refused(generate("-p", "A", "--exact", "--compute", "bf16"), "--exact", "--compute", "bf16")
        self.refused(generate("-p", "A", "-v"), "--verbose", "--quiet")
        self.refused(generate("-p", "A", "--logprobs", 2), "--logprobs", "--json")
        self.refused(generate("-p", "A", "--choices", 129), "--choices: 129 is more than 128")
        self.refused(generate("-p", "A", "--choices", 4, "--prefill-chunk", 3), "--choices: 4 is more than 3", "--prefill-chunk")
        self.refused(run("generate", "-q", "-p", "A"), "--model")
        self.refused(generate(), "no prompt")
        self.refused(generate("-p", "A", "--temp", "0", "--temp", "1"), "--temp")
        self.refused(run("worker"), "--listen")
        self.refused(run("worker", "--listen", "here"), "--listen", "'here'")
        self.refused(run("worker", "--listen", f"unix:{SCRATCH}/no/such.sock", "--kv-gib", "0.02"), f"{SCRATCH}/no/such.sock")

    def test_values_that_are_no_numbers(self):
        """Of every option with a range, as the help shows it, and of those without one."""
        cases = [("generate", option, kind) for option, kind in [
            ("--max-tokens", "INT"), ("--min-tokens", "INT"), ("--top-k", "INT"), ("--seed", "INT"), ("--logprobs", "INT"),
            ("--choices", "INT"),
            ("--temperature", "FLOAT"), ("--top-p", "FLOAT"), ("--min-p", "FLOAT"), ("--repetition-penalty", "FLOAT"),
            ("--presence-penalty", "FLOAT"), ("--frequency-penalty", "FLOAT")]]
        cases += [(command, "--seed", "INT") for command in ("synth", "latency step", "latency compare")]
        for command in Help.COMMANDS:
            # An error says the first of an option's names.
            shown = re.findall(r"(--[a-z-]+)(?:,--[a-z-]+)* \S+:U?(INT|FLOAT) in \[", run(*command.split(), "--help").stdout)
            cases += [(command, option, kind) for option, kind in shown]
        self.assertGreater(len(cases), 80)
        for command, option, kind in cases:
            for value in ("nan", "-inf", "") if kind == "FLOAT" else ("0x1", "1.5", "1" + 20 * "0", ""):
                with self.subTest(command=command, option=option, value=value):
                    self.refused(run(*command.split(), option, value), f"{command}: {option}: '{value}' is not a ")

    def test_numbers_are_decimal(self):
        self.assertEqual(self.answers("-p", "A", "-n", "010", "--ignore-eos")[0]["generated_tokens"], 10)

    def test_empty_values(self):
        for command, options in [("generate", ["-f", "--prompts-file", "--logits", "--stop", "--model", "--record-socket",
                                               "--secret-file", "--fault", "--s-cores", "--cuda-module"]),
                                 ("worker", ["--listen", "--secret-file"]), ("synth", ["--out"]),
                                 ("latency fabric", ["--secret-file", "--peer", "--cores"]), ("latency step", ["--save"])]:
            for option in options:
                with self.subTest(command=command, option=option):
                    self.refused(run(*command.split(), option, ""), "--file" if option == "-f" else option, "''")
        self.refused(run("generate", "-p", "A", "--stop-token-ids", "1,,2"), "--stop-token-ids", "''")
        self.assertEqual(len(self.answers("-p", "", "-n", 1)), 1)

    def test_bad_requests(self):
        cases = [(["-n", "0"], "--max-tokens: 0"), (["--temp", "101"], "--temperature: 101"), (["--top-p", "0"], "--top-p: 0"),
                 (["--min-p", "2"], "--min-p: 2"), (["--min-tokens", "9", "-n", "8"], "--min-tokens: 9"),
                 (["--logprobs", "21"], "--logprobs: 21"), (["--repetition-penalty", "0"], "--repetition-penalty: 0"),
                 (["--top-k", "-1"], "--top-k: -1", "2147483647"), (["--choices", "0"], "--choices: 0 is not at least 1")]
        for arguments, *needles in cases:
            with self.subTest(arguments=arguments):  # before a model is looked for
                self.refused(run("generate", "-m", SCRATCH / "no-model", "-p", "A", *arguments), *needles)
        cases = [(["--stop-token-ids", "99999"], "stop_token_ids", "99999"), (["--logit-bias", "99999:1"], "99999"),
                 (["--prompt-ids", "5,-1"], "prompt_ids[1]", "-1")]
        for arguments, *needles in cases:
            with self.subTest(arguments=arguments):
                prompt = [] if "--prompt-ids" in arguments else ["-p", "A"]
                self.refused(generate(*prompt, *arguments), *needles)

    def test_prompts_that_cannot_be(self):
        self.refused(generate("-p", "", "--no-special-tokens"), "prompt", "no tokens")
        self.refused(generate("-p", "word " * 400), "prompt", "context of 512")
        self.refused(generate("--prompt-ids", ",".join(["5"] * 32), "--max-context", "32"), "32 tokens", "context of 32")
        self.refused(generate("-f", SCRATCH / "nowhere.txt"), SCRATCH / "nowhere.txt", "No such file")
        self.refused(generate("-f", SCRATCH), SCRATCH, "directory")
        empty = scratch("empty.txt")
        empty.touch()
        self.refused(generate("--prompts-file", empty), f"--prompts-file: '{empty}' has no line")
        self.refused(generate("--prompts-file", "-", stdin=""), "--prompts-file: '-' has no line")
        self.refused(generate("-p", "A", model=golden_model()), "tokenizer.json")
        self.refused(generate("--prompt-ids", "1", "--stop", "x", model=golden_model()), "tokenizer.json")
        no_weights = scratch("no_weights")  # said before they are looked for
        no_weights.mkdir()
        shutil.copy(golden_model() / "config.json", no_weights)
        for needs_text in (["-p", "A"], ["--prompt-ids", "1", "--stop", "x"], ["--prompt-ids", "1", "--need-text"]):
            self.refused(generate(*needs_text, model=no_weights), "tokenizer.json", "--prompt-ids")
        self.refused(generate("--prompt-ids", "1", model=no_weights), "safetensors")

    def test_logits(self):
        path = scratch("never.npy")
        self.refused(generate("-p", "A", "-p", "B", "--logits", path), "--logits", "2")
        self.refused(generate("-p", "A", "--logits", SCRATCH / "no/such.npy"), SCRATCH / "no/such.npy")
        self.refused(generate("-p", "A", "--logits", SCRATCH), SCRATCH, "directory")
        self.refused(generate("-p", "A", "-n", 0, "--logits", path), "--max-tokens")
        self.refused(generate("-p", "word " * 400, "--logits", path), "error: prompt: ", "context of 512")
        self.assertEqual(list(SCRATCH.glob("never*")), [])

    def test_memory(self):
        base = ["generate", "-q", "-m", demo_model(), "-p", "A", "--kv-gib"]
        self.refused(run(*base, "0.0001"), "--kv-gib", "512")
        self.refused(run(*base, "100000"), "--kv-gib: no memory", "97.7 TiB")
        self.refused(run("worker", "--listen", f"unix:{SCRATCH}/big.sock", "--kv-gib", "100000"), "--kv-gib: no memory",
                     "97.7 TiB")
        self.assertFalse((SCRATCH / "big.sock").exists())


class Safetensors:
    """A safetensors file, to be written with damage."""

    def __init__(self, path):
        data = path.read_bytes()
        (header_bytes,) = struct.unpack("<Q", data[:8])
        self.header = json.loads(data[8:8 + header_bytes])
        self.header.pop("__metadata__", None)
        self.data = data[8 + header_bytes:]

    def without(self, name):
        """Leaves a tensor out, its bytes too."""
        kept, data = {}, b""
        for tensor, entry in self.header.items():
            if tensor == name:
                continue
            begin, end = entry["data_offsets"]
            kept[tensor] = dict(entry, data_offsets=[len(data), len(data) + end - begin])
            data += self.data[begin:end]
        self.header, self.data = kept, data

    def add(self, name, dtype, shape, data):
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)]}
        self.data += data

    def bytes(self):
        header = json.dumps(self.header).encode()
        return struct.pack("<Q", len(header)) + header + self.data


class BadModel(ProgramTest):
    """Copies of a sound checkpoint, each with one thing wrong."""

    number = 0

    def copy(self, source=None):
        BadModel.number += 1
        folder = scratch(f"model-{BadModel.number}")
        shutil.copytree(source or golden_model(), folder)
        return folder

    def refuse(self, folder, *needles, prompt=("--prompt-ids", "1")):
        return self.refused(generate(*prompt, "-n", 1, model=folder), *needles)

    def weights(self, change, *needles):
        folder = self.copy()
        path = folder / "model.safetensors"
        tensors = Safetensors(path)
        changed = change(tensors)
        path.write_bytes(tensors.bytes() if changed is None else changed)
        with self.subTest(needles=needles):
            self.refuse(folder, path, *needles)

    def config(self, change, *needles):
        folder = self.copy()
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))
        with self.subTest(needles=needles):
            self.refuse(folder, "config.json", *needles)

    def test_the_copy_itself_is_sound(self):
        folder = self.copy()
        path = folder / "model.safetensors"
        path.write_bytes(Safetensors(path).bytes())
        self.succeed(generate("--prompt-ids", "1", "-n", 1, model=folder))

    def test_safetensors_that_are_damaged(self):
        self.weights(lambda t: t.bytes()[:-100])
        self.weights(lambda t: t.bytes()[:100])
        self.weights(lambda t: b"")
        self.weights(lambda t: struct.pack("<Q", 10**6) + t.bytes()[8:], 10**6)
        self.weights(lambda t: struct.pack("<Q", 2**63) + t.bytes()[8:], 2**63)
        self.weights(lambda t: struct.pack("<Q", 40) + b"{ this is no JSON, whoever wrote it     " + t.data)

    def test_tensors_that_do_not_fit(self):
        name = "model.layers.1.mlp.up_proj.weight"

        def set_entry(**fields):
            return lambda t: t.header[name].update(fields)

        def reversed_shape(t):
            t.header[name]["shape"].reverse()

        def overlapping(t):
            entry = t.header[name]
            entry["data_offsets"] = [o - 64 for o in entry["data_offsets"]]

        def out_of_range(t):
            begin, end = t.header[name]["data_offsets"]
            t.header[name]["data_offsets"] = [begin + len(t.data), end + len(t.data)]

        self.weights(lambda t: t.without(name), name)
        self.weights(reversed_shape, name)
        self.weights(overlapping, name)
        self.weights(out_of_range, name)
        self.weights(set_entry(dtype="F7"), name, "F7")
        self.weights(set_entry(dtype="I64"), name)
        self.weights(set_entry(shape=[-1, 3]), name, "-1")
        self.weights(set_entry(data_offsets=[8, 0]), name)

    def test_tensors_that_nobody_needs(self):
        for name, needle in (("model.layers.7.extra", "it has tensors of layers up to number 7"),
                             ("v_head.summary.weight", "not read, as in transformers: v_head.summary.weight")):
            folder = self.copy()
            path = folder / "model.safetensors"
            tensors = Safetensors(path)
            tensors.add(name, "F32", [2], b"\0" * 8)
            path.write_bytes(tensors.bytes())
            result = generate("--prompt-ids", "1", "-n", 1, model=folder)
            self.assertEqual(self.succeed(result), self.succeed(generate("--prompt-ids", "1", "-n", 1, model=golden_model())))
            self.assertRegex(result.stderr, f"^fastdecode: warning: {path}: .*{needle}")

    def test_configs(self):
        def put(**fields):
            return lambda c: c.update(fields)

        def drop(name):
            return lambda c: c.pop(name)

        for field in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "intermediate_size"):
            self.config(drop(field), field)
        self.config(put(num_hidden_layers=-3), "num_hidden_layers", -3)
        self.config(put(hidden_size=10**12), "hidden_size", 10**12)
        self.config(put(vocab_size="many"), "vocab_size", "many")
        self.config(put(num_attention_heads=3), "num_attention_heads", 3)
        self.config(put(num_key_value_heads=3), "num_key_value_heads", 3)
        self.config(put(max_position_embeddings=0), "max_position_embeddings", 0)
        self.config(put(model_type="perceptron", architectures=["Perceptron"]), "erceptron")
        self.config(put(hidden_act="sinus"), "hidden_act", "sinus")

    def test_files_that_are_missing_or_no_json(self):
        folder = self.copy()
        (folder / "config.json").write_text('{"hidden_size": 64,')
        self.refuse(folder, folder / "config.json")
        (folder / "config.json").unlink()
        self.refuse(folder, folder / "config.json", "No such file")
        folder = self.copy()
        (folder / "model.safetensors").unlink()
        self.refuse(folder, folder)
        self.refuse(SCRATCH / "no-model", SCRATCH / "no-model")
        folder = self.copy(ROOT / "tools/demo_model/model")
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").symlink_to("gone")
        self.refuse(folder, folder / "tokenizer.json", "a link to nothing", prompt=("-p", "A"))

    def test_tokenizers(self):
        folder = self.copy(ROOT / "tools/demo_model/model")
        path = folder / "tokenizer.json"
        sound = json.loads(path.read_text())
        damaged = dict(sound, model=dict(sound["model"], merges=["no such merge at all"]))
        of_another_kind = dict(sound, model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0})
        for text, needle in ((json.dumps(sound)[:2000], "JSON"), (json.dumps(damaged), "merge"),
                             (json.dumps(of_another_kind), "Unigram")):
            path.write_text(text)
            with self.subTest(needle=needle):
                self.refuse(folder, path, needle, "--prompt-ids", prompt=("-p", "A"))
                self.refuse(folder, path, needle, "--prompt-ids", prompt=("--prompt-ids", "1", "--stop", "x"))
                result = generate("--prompt-ids", "1", "-n", 1, model=folder)
                self.assertRegex(self.succeed(result), r"^\d+\n$")
                self.assertRegex(result.stderr, f"^fastdecode: warning: no text for this model, .*{path}.*{needle}")


class NoGpu(ProgramTest):
    CUDA = ["--spart", "cuda", "-p", "A"]

    def test_no_module(self):
        program = SCRATCH / "moved" / "bin" / "fastdecode"
        program.parent.mkdir(parents=True)
        shutil.copy(PROGRAM, program)
        result = subprocess.run([program, "generate", "-m", demo_model(), *SMALL, *self.CUDA], capture_output=True, text=True,
                                timeout=LIMIT_S)
        self.refused(result, program.parent / "libfastdecode_cuda.so", "the target fastdecode_cuda", "--cuda-module")

    def test_what_is_no_module(self):
        text = scratch("text.so")
        text.write_text("x" * 1000)
        for module, needle in (("/no/such.so", "does not exist"), (text, "invalid ELF header"), ("libnuma.so.1", "does not exist")):
            self.refused(generate(*self.CUDA, "--cuda-module", module), module, needle, "--cuda-module is for",
                         "libfastdecode_cuda.so")

    def test_no_driver(self):
        module = pathlib.Path(PROGRAM).parent / "libfastdecode_cuda.so"
        if not module.exists() or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):
            self.skipTest("this build has no module for GPUs, or this machine has a driver")
        self.refused(generate(*self.CUDA), "no GPU", "NVIDIA's driver (libcuda.so.1)", "install it", "--gpus all")


class Permissions(ProgramTest):
    NOBODY = 65534

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody without permission")
        try:
            seen = run("--version", user=self.NOBODY, group=self.NOBODY, cwd="/")
        except PermissionError:
            seen = None
        if seen is None or seen.returncode != 0:
            self.skipTest("nobody cannot run the program where it lies")
        SCRATCH.chmod(0o755)

    def as_nobody(self, *arguments):
        return run(*arguments, user=self.NOBODY, group=self.NOBODY, extra_groups=[], cwd="/")

    def test_files(self):
        folder = scratch("private")
        shutil.copytree(golden_model(), folder)
        for name in ("model.safetensors", "config.json"):
            (folder / name).chmod(0o600)
            self.refused(self.as_nobody("generate", "-m", folder, *SMALL, "--prompt-ids", "1"), folder / name, "Permission denied")
        self.refused(self.as_nobody("synth", "--shape", "tiny-random", "--out", SCRATCH / "mine"), SCRATCH / "mine",
                  "Permission denied")

    def test_sockets(self):
        self.refused(self.as_nobody("worker", "--listen", f"unix:{SCRATCH}/mine.sock", "--kv-gib", "0.02"), "mine.sock",
                  "Permission denied")
        folder = scratch("public")
        shutil.copytree(golden_model(), folder)
        with Worker("root.sock") as worker:
            self.refused(self.as_nobody("generate", "-m", folder, *SMALL, "--prompt-ids", "1", "--homes", f"unix:{worker.path}"),
                      worker.path, "Permission denied")


# ---------------------------------------------------------------------------------------------------------- containers


def refuse_mbind():
    """As Docker's filter does to whoever lacks CAP_SYS_NICE: EPERM for mbind, and for move_pages."""
    load, equal, done = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 0), (equal, 1, 0, 237), (equal, 0, 1, 279), (done, 0, 0, 0x50001), (done, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, filters, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


@unittest.skipIf(subprocess.run(["unshare", "-m", "sh", "-ec", "mount -t tmpfs none /run"], capture_output=True).returncode != 0,
                 "needs mounts of its own")
class Containers(ProgramTest):
    def warnings(self, mounts, **more):
        """Those of an engine that answers where something is mounted."""
        command = [PROGRAM, "generate", "-m", demo_model(), *SMALL, "--prompt-ids", "1", "-n", "2"]
        result = subprocess.run(["unshare", "-m", "sh", "-ec", mounts + '; exec "$@"', "sh", *command], capture_output=True,
                                text=True, timeout=LIMIT_S, **more)
        self.succeed(result)
        return [line for line in result.stderr.splitlines() if line.startswith("fastdecode: warning: ")]

    def test_no_place_to_reserve_cores(self):
        if any(str(path).startswith("/tmp/") for path in (pathlib.Path(PROGRAM).resolve(), ROOT.resolve())):
            self.skipTest("the program or its files would be hidden")
        read_only = "mount -t tmpfs -o ro none /run; mount -t tmpfs -o ro none /tmp"
        self.assertIn("/tmp/fastdecode-", "".join(self.warnings(read_only)))

    def test_memory_that_may_not_be_placed(self):
        nodes, of_machine = SCRATCH / "has_memory", pathlib.Path("/sys/devices/system/node/has_memory")
        checks = json.loads(run("doctor", "--json").stdout)["checks"]
        if not of_machine.exists() or any("mbind" in check["found"] for check in checks):
            self.skipTest("this machine's kernel places no memory on nodes")
        nodes.write_text("0-1\n")
        two_nodes = f"mount --bind {nodes} {of_machine}"
        self.assertNotIn("mbind", "".join(self.warnings(two_nodes)))
        self.assertIn("--cap-add SYS_NICE", "".join(self.warnings(two_nodes, preexec_fn=refuse_mbind)))


# ------------------------------------------------------------------------------------------------- signals and streams


class Interruptions(ProgramTest):
    def test_ctrl_c_ends_generate(self):
        for by in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = start_long()
            first = process.stdout.read(60)
            self.assertIn(PROMPT, first)
            process.send_signal(by)
            out, err = process.communicate(timeout=LIMIT_S)
            self.assertEqual((process.returncode, err),
                             (128 + by, "fastdecode: 0 of 8 prompts were answered\nfastdecode: interrupted\n"))
            self.assertNotIn("== 8 of 8", out)
            self.assertTrue(out.endswith("\n== 1 of 8: cancelled\n"), out)

    def test_ctrl_c_keeps_what_is_finished(self):
        # Answers as long as the context allows: that of prompt 3 ends long before the first does, that of prompt 2 long after.
        prompts = [x for tokens in (400, 1, 510, 1) for x in ("--prompt-ids", ",".join(["5"] * tokens))]
        command = [PROGRAM, "generate", "--model", demo_model(), "--max-sequences", "3", "--kv-gib", "0.05", "-q", "-n", "500",
                   "--ignore-eos", "--fault", "delay=1:1ms", *PATIENT, *prompts]
        process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=as_user_with_default_signals)
        out = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, err),
                         (130, "fastdecode: 2 of 4 prompts were answered\nfastdecode: interrupted\n"))
        out = [json.loads(line) for line in (out + rest).splitlines()]
        self.assertEqual([(a["index"], a["finish_reason"]) for a in out],
                         [(0, "length"), (1, "cancelled"), (2, "length"), (3, "cancelled")])
        self.assertEqual((out[0]["generated_tokens"], out[2]["generated_tokens"]), (112, 2))
        self.assertEqual(len(out[1]["token_ids"]), out[1]["generated_tokens"])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=as_user_with_default_signals)
        out = ""
        while "== 2 of 4\n" not in out:
            out += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(re.findall("(?m)^== .*$", out + rest), ["== 1 of 4", "== 2 of 4", "== 2 of 4: cancelled", "== 3 of 4"])

    def test_nohup_is_obeyed(self):
        command = [PROGRAM, "generate", "-m", demo_model(), *SMALL, "-p", PROMPT, "-n", "50", "--ignore-eos", "--fault",
                   "delay=1:1ms"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
            self.assertTrue(process.stdout.read(len(PROMPT) + 1))
            process.send_signal(signal.SIGHUP)
            self.assertTrue(process.stdout.read())
            self.assertEqual(process.wait(LIMIT_S), 0)

    def test_ctrl_c_ends_synth_and_leaves_nothing(self):
        for by in (signal.SIGINT, signal.SIGHUP):
            self.end_synth(by)

    def end_synth(self, by):
        out = scratch("interrupted")
        command = [PROGRAM, "synth", "--shape", "llama-2-7b", "--out", str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=as_user_with_default_signals)
        until = time.monotonic() + LIMIT_S
        while not list(SCRATCH.glob("interrupted*/*.safetensors")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        process.send_signal(by)
        _, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, err), (128 + by, "fastdecode: interrupted\n"))
        self.assertEqual(list(SCRATCH.glob("interrupted*")), [])

    def test_a_reader_that_goes_ends_generate(self):
        process = start_long()
        self.assertTrue(process.stdout.read(10))
        process.stdout.close()
        self.assertEqual(process.wait(LIMIT_S), -signal.SIGPIPE)
        process.stderr.close()

    def test_a_full_disk_is_no_success(self):
        with open("/dev/full", "w") as full:
            for command in (["--help"], ["completion"], ["generate", "-m", demo_model(), *SMALL, "-p", "A", "-n", "2"]):
                result = subprocess.run([PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn("stdout: cannot be written", result.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
