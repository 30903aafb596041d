#!/usr/bin/env python3
"""Uses the fastdecode program as people do who know another one, or who mistype, and looks at what it tells them.

usage: wrong_use_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]
"""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import unittest

import cli_test
from cli_test import LIMIT_S, SCRATCH, ProgramTest, demo_model, generate, option_table, run, scratch

# A folder that is not there: whatever is said instead of that was found before a model is looked for.
NO_MODEL = ["-m", "/no/model"]
PROMPT = ["-p", "A"]


class Refusals(ProgramTest):
    def refused_early(self, *arguments, needles=(), **more):
        error = self.refused(run(*arguments, **more), *needles)
        self.assertNotIn("/no/model", error)
        return error


class StandardInput(Refusals):
    def once(self, *arguments, users):
        for given in ("Anna\n", ""):
            error = self.refused_early(*arguments, stdin=given)
            self.assertRegex(error, "standard input (is read once|has the messages)")
            for user in users:
                self.assertIn(user, error)

    def test_it_is_read_by_one_option(self):
        both = ["generate", *NO_MODEL]
        self.once(*both, "-f", "-", "-f", "-", users=["--file: '-'", "--file '-' reads it"])
        self.once(*both, "-f", "-", "--prompts-file", "-", users=["--prompts-file: '-'", "--file '-'"])
        self.once(*both, "-f", "/dev/stdin", "-f", "-", users=["'/dev/stdin'", "'-'"])
        self.once(*both, "-f", "-", "-p", "A", "--prompts-file", "/dev/fd/0", users=["'/dev/fd/0'", "'-'"])
        self.once(*both, "-f", "/proc/self/fd/0", "-f", "/dev//fd/0", users=["'/proc/self/fd/0'", "'/dev//fd/0'"])
        self.once(*both, "-f", "-", "--chat-template", "/dev/stdin", users=["--file '-'", "--chat-template: '/dev/stdin'"])
        self.once("bench", "accuracy", *NO_MODEL, "--text", "-", "--text", "-", users=["--text: '-'"])
        self.once("template", "-", "--context", "-", users=["--context: '-'", "FILE '-'"])
        self.once("bench", "serve", "--prompts-file", "-", "--api-key-file", "/dev/stdin",
                  users=["--prompts-file", "--api-key-file"])
        for option in ("--chat-template", "--secret-file"):
            self.once("chat", *NO_MODEL, option, "/dev/stdin", users=[option, "messages of the chat"])
        self.once("chat", "--url", "http://127.0.0.1:1", "--api-key-file", "/dev/fd/0", users=["--api-key-file"])

    def test_a_pipe_is_read_by_one_option(self):
        pipe = scratch("pipe")
        os.mkfifo(pipe)
        link = scratch("link-to-pipe")
        link.symlink_to(pipe.name)
        self.refused_early("generate", *NO_MODEL, "-f", pipe, "-f", link, needles=["a pipe is read once", pipe, link])
        self.refused_early("template", pipe, "--context", pipe, needles=["--context", "a pipe is read once", "FILE"])
        script = f"exec {cli_test.PROGRAM} generate -m /no/model -f /dev/fd/5 --prompts-file /dev/fd/5 5< <(echo A)"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
        self.refused(result, "--prompts-file: '/dev/fd/5'", "a pipe is read once", "--file")

    def test_files_may_be_named_twice(self):
        file = scratch("twice.txt")
        file.write_text("Anna\n")
        self.assertEqual(len(self.answers("-f", file, "-f", file, "--prompts-file", file, "-n", 1)), 3)
        with open(file) as given:  # another descriptor has a position of its own
            out = subprocess.run([cli_test.PROGRAM, "generate", "-m", demo_model(), *cli_test.SMALL, "-n", "1", "--json", "-f",
                                  "-", "-f", str(file)], stdin=given, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(len(self.succeed(out).splitlines()), 2)

    def test_it_holds_a_text(self):
        for nothing in ("", "\n", "\r\n", "\ufeff"):
            self.refused_early("generate", *NO_MODEL, "-f", "-", stdin=nothing,
                               needles=["--file: '-': standard input is empty", "--prompt ''"])
        self.assertEqual(len(self.answers("-f", "-", "-n", 1, stdin=" ")), 1)
        empty = scratch("empty-prompt.txt")  # a file is what somebody wrote
        empty.touch()
        self.assertEqual(len(self.answers("-f", empty, "-n", 1)), 1)

    def test_it_is_open(self):
        for arguments in (["generate", "-f", "-"], ["generate", "--prompts-file", "-"], ["bench", "accuracy", "--text", "-"],
                          ["chat"]):
            for closed in ("<&-", "0>/dev/null"):
                command = f"exec {cli_test.PROGRAM} {' '.join(arguments)} -m /no/model {closed}"
                result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LIMIT_S)
                self.refused(result, "standard input is closed", arguments[-2] if arguments[0] == "bench" else "")

    def test_it_is_no_terminal(self):
        for arguments in (["generate", "-f", "-"], ["generate", "--prompts-file", "/dev/stdin"], ["template", "-"]):
            near, far = pty.openpty()
            try:
                model = [] if arguments[0] == "template" else NO_MODEL
                result = subprocess.run([cli_test.PROGRAM, *arguments, *model], stdin=far, capture_output=True, text=True,
                                        timeout=LIMIT_S)
            finally:
                os.close(near)
                os.close(far)
            self.refused(result, f"'{arguments[-1]}': standard input is a terminal", "pipe a text into this command")

    def test_a_dash_is_no_file_elsewhere(self):
        for command, options in {"generate": ["--chat-template", "--secret-file"], "serve": ["--tls-cert", "--api-key-file"],
                                 "bench serve": ["--api-key-file"], "latency fabric": ["--secret-file"]}.items():
            for option in options:
                self.refused_early(*command.split(), option, "-",
                                   needles=[f"{option}: '-': it is not read from standard input", "name of a file"])
        self.refused_early("latency", "compare", "-", "/no/model", needles=["A: '-': it is not read from standard input"])


class Outputs(Refusals):
    def test_a_file_is_written_by_one_option(self):
        here = scratch("result.json")
        step = ["latency", "step", *NO_MODEL]
        self.refused_early(*step, "--save", here, "--save", here, needles=[f"--save: '{here}'", "writes the same file"])
        self.refused_early(*step, "--save", here, "--save", SCRATCH / "." / "x" / ".." / here.name,
                           needles=["writes the same file"])
        link = scratch("link.json")
        link.symlink_to(here.name)
        here.touch()
        self.refused_early(*step, "--save", here, "--save", link, needles=[link, "writes the same file"])
        self.refused_early("latency", "attach", "1", "--save", "a.html", "--save", "./a.html", needles=["writes the same"])
        self.assertEqual(here.read_bytes(), b"")

    def test_what_is_read_is_not_written(self):
        file = scratch("both.npy")
        file.write_text("Anna")
        self.refused_early("generate", *NO_MODEL, "-f", file, "--logits", file,
                           needles=["--logits", file, "--file", "reads the same file"])
        self.refused_early("bench", "serve", "--prompts-file", file, "--result-filename", file, needles=["reads the same"])
        self.refused_early("serve", *NO_MODEL, "--api-key-file", file, "--access-log", file, needles=["--access-log", "reads"])
        self.assertEqual(file.read_text(), "Anna")

    def test_standard_output_has_the_rest(self):
        self.refused_early("generate", *NO_MODEL, *PROMPT, "--logits", "-", needles=["--logits: '-'", "standard output"])
        self.refused_early("generate", *NO_MODEL, *PROMPT, "--logits", "/dev/stdout", needles=["standard output, which has"])
        self.refused_early("bench", "serve", "--result-filename", "-", needles=["--result-filename: '-'"])
        self.refused_early("bench", "serve", "--result-filename", "/dev/fd/1", needles=["standard output, which has"])
        self.refused_early("latency", "step", *NO_MODEL, "--save", "-", needles=["--save: '-'"])
        path = scratch("stdout.json")
        with open(path, "w") as out:
            result = subprocess.run([cli_test.PROGRAM, "latency", "step", *NO_MODEL, "--save", path], stdout=out,
                                    stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        self.assertEqual(result.returncode, 1)
        self.assertIn("it is this command's standard output", result.stderr)


# ---------------------------------------------------------------------------------------------------- other programs


def foreign_table(name):
    """The names of tools/foreign_options.cc, with the answer of each."""
    source = (cli_test.ROOT / "tools/foreign_options.cc").read_text()
    table = source[source.index(f"constexpr Foreign {name}[]"):]
    table = re.sub(r"(?m)//.*$", "", table[:table.index("\n};")])
    answers = {}
    for row in re.findall(r'\{((?:\s*"(?:[^"\\]|\\.)*"\s*)+,(?:\s*"(?:[^"\\]|\\.)*"\s*)+)\}', table):
        literal = lambda part: "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part))
        cut = re.search(r'",\s*"', row).start() + 1
        for word in literal(row[:cut]).split():
            assert word not in answers, f"{word} is there twice"
            answers[word] = literal(row[cut:])
    return answers


def options_of(text):
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)


class OtherPrograms(Refusals):
    def test_every_option_of_them_is_answered(self):
        answers = foreign_table("kOptions")
        self.assertGreater(len(answers), 400)
        ours = {word for words in option_table().values() for word in words} | {"-m", "-n", "-f", "-p", "-q", "-v", "-s", "-c"}
        options = set(option_table()["generate"])
        of_servers = options | set(option_table()["serve"])
        for name, answer in answers.items():
            for option in options_of(answer):
                self.assertIn(option, ours, f"{name}: {answer}")
            self.assertNotIn(name, of_servers)
            self.assertFalse(any(option.startswith(name + "-") for option in options if option not in answer) and
                             name != "--ctx", f"{name} begins one of ours, which would be suggested")
        for name, answer in answers.items():
            told = self.refused_early("generate", *NO_MODEL, *PROMPT, name, "1")
            self.assertTrue(f"generate: unknown option {name}: {answer[:20]}" in told or name == "--ctx", told)
        for name in ("-ngl", "-t", "-fa", "-hf", "-np", "-ctk", "-tp", "--dtype", "-mg"):
            for given in ([name], [name + "=1"]):
                with self.subTest(given=given):
                    self.refused_early("generate", *NO_MODEL, *PROMPT, *given, needles=[f"generate: unknown option {name}: "])

    def test_the_answers(self):
        cases = [  # llama.cpp
            ("-ngl 99", "unknown option -ngl: ", "--spart"), ("-ngl99", "unknown option -ngl99: ", "--spart"),
            ("-t 4", "unknown option -t: ", "--s-threads", "--r-threads"), ("--threads 0", "--s-threads"),
            ("--repeat-penalty 1.1", "--repetition-penalty"), ("-np 4", "--max-sequences"), ("-fa on", "leave it out"),
            ("-ctk q8_0", "--kv-type"), ("-hf org/model", "nothing is downloaded", "-m DIR"), ("-b 512", "--prefill-chunk"),
            ("--mirostat 2", "--top-p"), ("-e", "$'"), ("--special", "--show-special"), ("--lora a", "there are no adapters"),
            ("--no-mmap", "leave it out"), ("-sm layer", "--gpu"), ("-cnv", "fastdecode chat"), ("-nkvo", "--kv-gib"),
            ("--rope-freq-base 1e6", "config.json"), ("--grammar x", "free text"), ("-i", "fastdecode chat"),
            # vLLM
            ("--tp 2", "unknown option --tp: ", "--homes"), ("-tp 2", "--homes"), ("-tp=2", "unknown option -tp: "),
            ("--tensor-parallel-size 2", "--homes"), ("--tensor_parallel_size=2", "--homes"), ("-pp 2", "--homes"),
            ("--dtype bfloat16", "--compute"), ("--gpu-memory-utilization 0.9", "--kv-gib"), ("--enforce-eager", "leave it out"),
            ("--trust-remote-code", "no code of a model is run"), ("--quantization awq", "no quantised weights"),
            ("--kv-cache-dtype fp8", "--kv-type"), ("--max-num-batched-tokens 1", "--prefill-chunk"), ("-O3", "leave it out"),
            ("--compilation-config.level 3", "leave it out"), ("--api-key x", "--api-key-file"),
            ("--enable-prefix-caching", "--prefix-cache"), ("--no-cache-prompt", "--prefix-cache"),
            # SGLang, TGI, transformers, ollama
            ("--model-path x", "-m DIR"), ("--mem-fraction-static 0.8", "--kv-gib"), ("--context-length 8", "--max-context"),
            ("--model-id x", "-m DIR"), ("--num-shard 2", "--homes"), ("--max-total-tokens 9", "--max-context"),
            ("--max_new_tokens 5", "unknown option --max_new_tokens: give -n N"), ("--do_sample", "--temp"),
            ("--num_beams 4", "there are no beams"), ("--keep-alive 5m", "systemd"),
            ("--num_return_sequences 4", "give --choices N")]
        for given, *needles in cases:
            with self.subTest(given=given):
                error = self.refused_early("generate", *NO_MODEL, *PROMPT, *given.split(), needles=needles)
                self.assertNotIn("did you mean", error)

    def test_options_of_ours_in_other_ways_and_places(self):
        cases = [("generate --n_predict 3", "did you mean --n-predict?"), ("generate --max_tokens=3", "did you mean --max-tokens?"),
                 ("generate -max-tokens 3", "did you mean --max-tokens?"), ("generate -temp 0", "did you mean --temp?"),
                 ("generate -model x", "did you mean --model?"), ("generate --Top-P 1", "did you mean --top-p?"),
                 ("generate --top_k 1", "did you mean --top-k?"), ("serve --served_model_name x", "did you mean --served-model-name?"),
                 ("generate --ctx 5", "did you mean --ctx-size?"), ("bench serve --timeout 5", "did you mean --timeout-s?"),
                 ("generate --host x", "it is an option of serve"), ("worker --homes x", "it is an option of generate"),
                 ("serve --temp 0", "each request says it"), ("serve --max-tokens 9", "each request says it"),
                 ("serve --max_tokens 9", "each request says it"), ("generate --max-queued-requests 1", "an option of serve"),
                 ("generate -ngx 9", "unknown option -ngx"), ("generate -nx", "unknown option -nx"),
                 ("-m x", "it is an option of generate"), ("generate --version", "without a command: fastdecode --version")]
        for given, needle in cases:
            with self.subTest(given=given):
                self.refused_early(*given.split(), needles=[needle])
        for unlike in ("--tq", "--xp", "-x", "--zz"):  # near to much, and to nothing
            self.assertNotIn("did you mean", self.refused(run("generate", unlike, 2), f"unknown option {unlike}"))

    def test_values_that_look_like_options_are_values(self):
        out = self.answers(*[x for text in ("-ngl", "--tp", "-t", "--max_tokens") for x in ("-p", text)], "--stop", "--tp",
                           "-n", 1)
        self.assertEqual(len(out), 4)
        self.assertEqual(len(self.answers("--prompt=-ngl", "-n1", "-s7")), 1)
        text = self.succeed(run("generate", "--tp", "2", "--help"))  # who asks for help gets it
        self.assertIn("Usage: fastdecode generate", text)

    def test_commands(self):
        for name, answer in foreign_table("kCommands").items():
            error = self.refused(run(name, "x"), f"unknown command '{name}': ")
            for option in options_of(answer):
                self.assertIn(option, "-m -p --json --prompts-file --listen")
            for command in re.findall(r"fastdecode ([a-z]+)", answer):
                self.assertIn(command, option_table())
            self.assertNotIn("there are", error.split(": ", 2)[2][:9])
        for given, needle in {"run model": "fastdecode chat", "server -m x": "fastdecode serve", "launch_server": "fastdecode serve",
                              "pull llama3": "-m", "ps": "no store of models", "collect-env": "fastdecode doctor",
                              "generat": "did you mean generate?", "bench run": "did you mean"}.items():
            if needle != "did you mean":
                self.refused(run(*given.split()), needle)
        self.refused(run("bench", "pull"), "unknown command 'pull', there are step")

    def test_help_and_version(self):
        self.assertEqual(self.succeed(run("help")), self.succeed(run("--help")))
        self.assertEqual(self.succeed(run("help", "bench", "step")), self.succeed(run("bench", "step", "-h")))
        for word in ("-v", "-V", "version"):
            self.assertEqual(self.succeed(run(word)), self.succeed(run("--version")))

    def test_words_that_no_option_takes(self):
        cases = [(["serve", "/models/tiny"], "'/models/tiny'; a model's folder is given with --model DIR"),
                 (["chat", "/models/tiny"], "--model DIR"), (["inspect", "tiny"], ""),
                 (["generate", *NO_MODEL, "Once upon a time"], "'Once upon a time'; a text to go on from is given with --prompt"),
                 (["generate", *NO_MODEL, "-p", "Once", "upon", "a"], "'upon'; a text with spaces stands in quotes"),
                 (["generate", *NO_MODEL, *PROMPT, "--json", "true"], "'true'; --json takes no value"),
                 (["generate", *NO_MODEL, *PROMPT, "-q", "awq"], "'awq'; -q takes no value"),
                 (["generate", *NO_MODEL, "\u2014prompt", "A"], "options begin with the hyphen of the keyboard"),
                 (["generate", *NO_MODEL, *PROMPT, "\u2013n", "5"], "the hyphen of the keyboard")]
        for given, needle in cases:
            with self.subTest(given=given):
                self.refused(run(*given), needle)

    def test_the_documents_tell_the_same(self):
        """What stands in the left column of docs/FROM_OTHER_SERVERS.md is an option of ours, or has an answer."""
        text = (cli_test.ROOT / "docs/FROM_OTHER_SERVERS.md").read_text()
        names, ours = set(), set()
        for left, right in re.findall(r"(?m)^\| (.*?) \| (.*) \|$", text):
            if left.startswith("`vllm") or left.startswith("its ") or "/" in left:
                continue
            names |= {word for code in re.findall(r"`([^`]*)`", left) for word in options_of(code)}
            ours |= {word for code in re.findall(r"`([^`]*)`", right) for word in options_of(code)}
        answers = foreign_table("kOptions")
        table = option_table()
        known = {word for words in table.values() for word in words} | {"-m", "-n", "-s", "-f", "-c", "-p"}
        self.assertGreater(len(names), 80)
        for name in names - {"--no-context-shift"}:
            self.assertTrue(name in answers or name in known, name)
        for option in ours:
            self.assertTrue(option in known or option in answers, option)


# -------------------------------------------------------------------------------------------------------------- values


class Values(Refusals):
    def test_numbers(self):
        cases = [("--max-tokens 8k", "--max-tokens: '8k' is not a whole number", "written out: 8192 or 8000"),
                 ("-n 1,000", "without separators: 1000"), ("-n 1_000", "without separators: 1000"), ("-n 5.0", "whole number: 5"),
                 ("-n 1e2", "whole number: 100"), ("-n +5", "leave the + out"), ("-n 20tokens", "without a unit: 20"),
                 ("--temp 0,7", "with a point: 0.7"), ("--top-p 90%", "as a share: 0.9"), ("--min-p 0,05", "with a point: 0.05"),
                 ("--max-context 8k", "--max-context: '8k' is not a number from 0", "8192 or 8000"),
                 ("--max-context 128K", "131072 or 128000"), ("--max-context 1M", "write it out"), ("--max-context auto", "leave --max-context out"),
                 ("--max-context -1", "leave --max-context out"), ("--max-context 8,192", "without separators: 8192"),
                 ("--kv-gib 8GB", "'8GB' is not a number of GiB", "without a unit: 7.451"), ("--kv-gib 8GiB", "unit: 8"),
                 ("--kv-gib 8g", "unit: 8"), ("--kv-gib 512M", "unit: 0.5"), ("--kv-gib auto", "leave --kv-gib out"),
                 ("--kv-gib 90%", "not as a share"), ("--kv-gib 1,5", "with a point: 1.5"), ("--gpu-kv-gib 80GB", "unit: 74.51"),
                 ("--hop-timeout-ms 10s", "in ms, without a unit: 10000"), ("--gpu-wait-ms 1min", "60000"),
                 ("--hop-timeout-ms 500ms", "without a unit: 500")]
        for given, *needles in cases:
            with self.subTest(given=given):
                self.refused_early("generate", *NO_MODEL, *PROMPT, *given.split(), needles=needles)
        for option, value, needle in (("--max-body-mb", "8MB", "without a unit: 8"), ("--slow-client-s", "30s", "without a unit: 30"),
                                      ("--max-connections", "4k", "4096 or 4000")):
            self.refused_early("serve", *NO_MODEL, option, value, needles=[option, needle])
        for given, needle in {"--compute bfloat16": "; give bf16", "--compute half": "; give fp16", "--kv-type q8_0": "; give int8",
                              "--kv-type float32": "; give f32", "--spart gpu": "; give cuda"}.items():
            self.refused_early("generate", *NO_MODEL, *PROMPT, *given.split(), needles=[given.split()[0], needle])
        self.refused_early("generate", *NO_MODEL, *PROMPT, "-n", "=5", needles=["leave the = out"])
        for given in ("-n 0x10", "-n 1.5", "--temp hot", "-n 99999999999999999999999", "--kv-gib much", "--kv-gib 0x1"):
            error = self.refused_early("generate", *NO_MODEL, *PROMPT, *given.split())
            self.assertNotIn("; ", error)

    def test_values_that_mean_something_elsewhere(self):
        cases = [("--top-k -1", "--top-k: -1 is not in [0, ", "; 0 is off"), ("--top-p 0", "; 1 is off, and --temperature 0"),
                 ("--top-p 1.5", "1.5 is not in", "; 1 is off"), ("--temp -1", "--temperature: -1", "; 0 always takes"),
                 ("--min-p -1", "; 0 is off"), ("--repetition-penalty 0", "; 1 is off"),
                 ("-n -1", "'-1' is not a whole number", "1048576"), ("-n -2", "'-2'", "1048576"), ("-n 0", "--max-tokens: 0"),
                 ("--seed -1", "'-1' is not a whole number", "$RANDOM"), ("-s random", "$RANDOM"),
                 ("--logprobs -2 --json", "; -1 is off")]
        for given, *needles in cases:
            with self.subTest(given=given):
                self.refused_early("generate", *NO_MODEL, *PROMPT, *given.split(), needles=needles)
        self.refused_early("chat", *NO_MODEL, "-n", -1, needles=["leave it out"])

    def test_an_option_given_twice(self):
        cases = [(["-n", 5, "--max-tokens", 7], "--max-tokens: it takes one value, and is given '5' and '7'"),
                 (["--kv-gib", 1, "--kv-gib", 2, "--kv-gib=3"], "--kv-gib: it takes one value, and is given '1', '2' and '3'"),
                 (["--temp", 0, "--temp", 1], "--temperature: it takes one value"),
                 (["--logits", "a.npy", "--logits", "b.npy"], "'a.npy' and 'b.npy'")]
        for given, needle in cases:
            with self.subTest(given=given):
                self.refused_early("generate", *NO_MODEL, *PROMPT, *given, needles=[needle])
        self.refused_early("synth", "--shape", "a", "--shape", "b", "--out", "c", needles=["--shape: it takes one value"])

    def test_a_value_that_is_missing(self):
        for given in (["-n"], ["--prompt"], ["--kv-gib"], ["--stop-token-ids"]):
            self.refused_early("generate", *NO_MODEL, *given, needles=[f"{given[-1]}: its value is missing"])

    def test_truth_values(self):
        for flag in ("--json=true", "--json=1", "--ignore-eos=yes", "--need-text=True", "--batch-invariant=yes",
                     "--batch-invariant=no", "--need-text"):
            self.assertEqual(len(self.succeed(generate(*PROMPT, "-n", 1, flag)).splitlines()) > 0, True)
        self.assertIn('"text"', self.succeed(generate(*PROMPT, "-n", 1, "--json=yes")))
        self.assertNotIn('"text"', self.succeed(generate(*PROMPT, "-n", 1, "--json=false")))
        self.refused_early("generate", *NO_MODEL, *PROMPT, "--json=maybe", needles=["--json: 'maybe' is neither true nor"])
        self.refused_early("generate", *NO_MODEL, *PROMPT, "--need-text=maybe", needles=["--need-text", "'maybe'"])

    def test_stop_strings_with_escapes(self):
        for text in ("\\n", "end\\n\\n", "\\tX"):
            self.assertIn("bash writes that $'\\", generate(*PROMPT, "-n", 1, "--stop", text).stderr)
        for text in ("\n", "C:\\new", "\\alpha", "\\"):
            self.assertEqual(generate(*PROMPT, "-n", 1, "--stop", text).stderr, "")


class Endpoints(Refusals):
    def test_homes(self):
        forms = "is none of gpu, local, local:N, unix:PATH and HOST:PORT"
        cases = {"/run/w.sock": f"{forms}; a socket's path stands behind unix:, as in unix:/run/w.sock",
                 "./w.sock": "unix:./w.sock", "w.sock": "unix:w.sock", "~/w": "unix:~/w",
                 "localhost": f"{forms}; a host has a port behind it: localhost:7471", "10.0.0.1": "10.0.0.1:7471",
                 "host": "host:7471", "7471": "a port stands behind a host: HOST:7471",
                 "tcp://h:1": "there is no tcp:// before a host: h:1", "http://h": "there is no http:// before a host: h:7471",
                 "https://h:1/x": "before a host: h:1", "unix://path": "as in unix:path", "ipc:///tmp/w": "unix:/tmp/w",
                 "GPU": "give gpu", "cuda": "give gpu", "cuda:0": "give gpu, and --gpu N for which one", "gpu:1": "--gpu N",
                 "Local": "give local", "[::1]": "an address has a port behind it: [::1]:7471", "::1": "in brackets",
                 "::1:7471": "in brackets", "h:0": "a port from 1 to 65535", "h:99999": "a port from 1 to 65535", "h:": "a port",
                 "local:0": "from 1 to 64", "local,,local": "''"}
        for given, needle in cases.items():
            with self.subTest(given=given):
                self.refused_early("generate", *NO_MODEL, *PROMPT, "--homes", given, needles=["--homes: ", needle])

    def test_listen(self):
        cases = {"/run/w.sock": "unix:/run/w.sock", "gpu": "engines in other processes connect there",
                 "local": "engines in other processes connect there", "local:2": "engines in other processes",
                 "localhost": "localhost:7471", "7471": "0.0.0.0:7471", "tcp://0.0.0.0:7471": ": 0.0.0.0:7471"}
        for command in (["worker"], ["latency", "fabric"]):
            for given, needle in cases.items():
                with self.subTest(given=given, command=command):
                    error = self.refused_early(*command, "--listen", given,
                                               needles=[f"--listen: '{given}': is neither unix:PATH nor HOST:PORT", needle])
                    self.assertNotIn("local:N", error)
        error = self.refused(run("latency", "fabric", "--peer", "/run/w.sock"), "unix:/run/w.sock", "is none of local, unix:PATH")
        self.assertNotIn("gpu", error)

    def test_addresses_of_a_server(self):
        cases = [("--host", "http://0.0.0.0", "--port N"), ("--host", "0.0.0.0:9000", "--host 0.0.0.0 --port 9000"),
                 ("--host", ":9000", "--host 0.0.0.0 --port 9000"), ("--host", "/run/s.sock", "--uds /run/s.sock"),
                 ("--host", "s.sock", "--uds s.sock"), ("--host", "unix:/run/s", "--uds /run/s"), ("--host", "*", "0.0.0.0"),
                 ("--host", "[::1]", "without brackets"), ("--uds", "unix:/run/s", "leave unix: out"), ("--port", "99999", "65535"),
                 ("--port", "8000/tcp", "8000/tcp")]
        for option, value, needle in cases:
            with self.subTest(option=option, value=value):
                self.refused_early("serve", *NO_MODEL, option, value, needles=[f"{option}: '{value}'", needle])
        for url in ("localhost:8000", "127.0.0.1", "ws://h"):
            self.refused_early("chat", "--url", url, needles=[f"--url: '{url}'", "give http://HOST:PORT"])


class BeforeTheModel(Refusals):
    def test_what_needs_no_model(self):
        cases = [(["--homes", "hostb:7471"], "--secret-file: needed for hostb:7471"),
                 (["--homes", "local,[::1]:7471"], "--secret-file: needed for [::1]:7471"),
                 (["--homes", "h:1", "--secret-file", "/no/such"], "/no/such"),
                 (["--homes", "h:1", "--hop-timeout-ms", 20], "--hop-timeout-ms: 20"), (["--logit-bias", "x"], "--logit-bias"),
                 (["--exact", "--compute", "bf16"], "--exact"), (["--logits", "/no/such/x.npy"], "--logits"),
                 (["-f", "/no/such.txt"], "/no/such.txt")]
        for given, needle in cases:
            with self.subTest(given=given):
                self.refused_early("generate", *NO_MODEL, *PROMPT, *given, needles=[needle])
        for command in ("chat", "serve", "bench step", "latency step"):
            more = ["--port", 0] if command == "serve" else []
            self.refused_early(*command.split(), *NO_MODEL, *more, "--homes", "h:1", needles=["--secret-file: needed for h:1"])
        self.refused_early("worker", *NO_MODEL, "--listen", "0.0.0.0:7471", needles=["--secret-file: needed for 0.0.0.0:7471"])


class WhatTheLogSays(ProgramTest):
    def model(self, name, config=None, generation=None):
        folder = scratch(name)
        shutil.copytree(demo_model(), folder)
        for file, fields in (("config.json", config), ("generation_config.json", generation)):
            if fields is None:
                continue
            path = folder / file
            path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))
        return folder

    def stderr_of(self, model, *arguments):
        result = run("generate", "-m", model, "--kv-gib", "0.2", "--max-sequences", 2, *PROMPT, "-n", 1, *arguments)
        self.succeed(result)
        return result.stderr

    def test_a_context_that_was_cut(self):
        long = self.model("long", config={"max_position_embeddings": 131072})
        told = self.stderr_of(long)
        self.assertEqual(told.count("context: 8192 tokens of the model's 131072"), 1, told)
        self.assertIn("--max-context N gives more", told)
        for arguments in (["--max-context", 8192], ["--max-context", 512], ["-q"]):
            self.assertNotIn("of the model's 131072", self.stderr_of(long, *arguments))
        self.assertNotIn("of the model's", self.stderr_of(self.model("short", config={"max_position_embeddings": 8192})))

    def test_sampling_that_the_model_asks_for(self):
        for name, fields, said in (("warm", {"temperature": 0.6, "top_p": 0.95}, ("temperature 0.6", "top_p 0.95")),
                                   ("greedy", {"do_sample": False}, ("temperature 0",)),
                                   ("narrow", {"top_k": 20, "repetition_penalty": 1.05}, ("top_k 20", "repetition_penalty 1.05"))):
            told = self.stderr_of(self.model(name, generation=fields))
            (line,) = [line for line in told.splitlines() if "generation_config.json" in line]
            for words in said:
                self.assertIn(words, line)
        silent = self.model("silent")
        (silent / "generation_config.json").write_text("{}")
        self.assertNotIn("sampling of", self.stderr_of(silent))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cli_test.PROGRAM, cli_test.ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
