#!/usr/bin/env python3
"""Drives `fastdecode chat` and `fastdecode template` as a user does, with the demo model.

usage: chat_cli_test.py PROGRAM [unittest arguments]
"""
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(1, str(pathlib.Path(__file__).parent / "serve"))
import demo_server
from demo_server import MODEL, DemoServer
from server_process import LIMIT_S

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else ""
FOLDER = tempfile.TemporaryDirectory(prefix="fd-chat-")
SCRATCH = pathlib.Path(FOLDER.name)
ENGINE = ["-q", "--kv-gib", "0.02", "--max-sequences", "8", "--batch-invariant", "--hop-timeout-ms", "60000",
          "--gpu-wait-ms", "120000"]
GREEDY = ["--temperature", "0"]


def run(*arguments, text=""):
    return subprocess.run([PROGRAM, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, "TZ": "UTC"})


def chat(text, *arguments):
    return run("chat", "--model", MODEL, *ENGINE, *GREEDY, *arguments, text=text)


def generated(prompt, *arguments):
    """What `generate` answers to the text of a chat, as the demo model's template writes it."""
    result = run("generate", "--model", MODEL, *ENGINE, *GREEDY, "--json", "-p", prompt, *arguments)
    return json.loads(result.stdout)["text"]


def file(name, text):
    path = SCRATCH / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def model_with(name, missing):
    """A folder with the files of the demo model, but for one."""
    folder = SCRATCH / name
    folder.mkdir()
    for each in MODEL.iterdir():
        if each.name != missing:
            (folder / each.name).symlink_to(each)
    return folder


class Chat(unittest.TestCase):
    def test_answers_are_those_of_the_rendered_chat(self):
        first = generated("Once upon a time.\n", "-n", 12)
        second = generated(f"Once upon a time.\n{first.strip()}\nThen she went home.\n", "-n", 12)
        result = chat("Once upon a time.\nThen she went home.\n", "-n", 12)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, first + "\n" + second + "\n")

    def test_system_and_reset(self):
        alone = generated("Anna had a kite.\n", "-n", 8)
        led = generated("A dog.\nAnna had a kite.\n", "-n", 8)
        result = chat("/system A dog.\nAnna had a kite.\n/reset\n/system\nAnna had a kite.\n", "-n", 8)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, led + "\n" + alone + "\n")
        self.assertEqual(chat("Anna had a kite.\n", "-n", 8, "--system", "A dog.").stdout, led + "\n")

    def test_special_tokens_in_a_message_are_text(self):
        # As a special token it would end the model's attention to what came before; as text it is six characters or so.
        result = chat("Anna <|end|> had a kite.\n/stats\n", "-n", 1)
        as_text = run("generate", "--model", MODEL, *ENGINE, "--json", "--plain", "-p", "Anna <|end|> had a kite.\n", "-n", 1)
        self.assertIn(f"prompt {json.loads(as_text.stdout)['prompt_tokens']} tokens", result.stderr)

    def test_stats_and_help(self):
        result = chat("/stats\n/help\nAnna had a kite.\n/stats\n", "-n", 5)
        self.assertIn("no answer yet", result.stderr)
        self.assertIn("/reset", result.stderr)
        self.assertRegex(result.stderr, r"answer 5 tokens; first token after [\d.]+ s, [\d.]+ tokens/s")
        self.assertRegex(result.stderr, r"context \d+ of 512 tokens")

    def test_exit_leaves_the_rest_alone(self):
        result = chat("/exit\nAnna had a kite.\n")
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_a_full_context_is_said_and_the_chat_goes_on(self):
        result = chat("kite " * 600 + "\nAnna had a kite.\n", "-n", 5)
        self.assertEqual(result.returncode, 1)
        self.assertIn("/reset", result.stderr)
        self.assertEqual(result.stdout, generated("Anna had a kite.\n", "-n", 5) + "\n")

    def test_an_unknown_command(self):
        result = chat("/nosuch\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nosuch", result.stderr)

    def test_reasoning_is_shown_apart_or_not_at_all(self):
        template = file("think.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n")
        shown = chat("Anna had a kite.\n", "-n", 6, "--chat-template", template)
        self.assertTrue(shown.stdout.startswith("[reasoning]\n"), shown.stdout)
        hidden = chat("Anna had a kite.\n", "-n", 6, "--chat-template", template, "--no-reasoning")
        self.assertEqual(hidden.stdout, "\n")

    def test_no_template(self):
        model = model_with("no-template", "chat_template.jinja")
        result = run("chat", "--model", model, *ENGINE, text="hello\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--chat-template", result.stderr)
        broken = run("chat", "--model", MODEL, *ENGINE, "--chat-template", file("bad.jinja", "a\n{% if %}"), text="hello\n")
        self.assertEqual(broken.returncode, 1)
        self.assertIn("bad.jinja:2:7", broken.stderr)
        missing = run("chat", "--model", MODEL, *ENGINE, "--chat-template", SCRATCH / "none.jinja", text="hello\n")
        self.assertIn("none.jinja", missing.stderr)
        self.assertEqual(missing.returncode, 1)

    def test_what_the_template_says(self):
        template = file("picky.jinja", "{{ raise_exception('no chats on Sundays') }}")
        result = chat("hello\n", "--chat-template", template)
        self.assertEqual(result.returncode, 1)
        self.assertIn("no chats on Sundays", result.stderr)


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *arguments, model=MODEL, kv_gib="0.02"):
        engine = [kv_gib if option == "0.02" else option for option in ENGINE]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(PROGRAM, [PROGRAM, "chat", "--model", str(model), *engine, *GREEDY, *map(str, arguments)])
        self.seen = ""

    def wait_for(self, text):
        waited, last = 0, time.monotonic()
        looked = 0  # so much of what was seen has no such text
        while text not in self.seen[looked:]:
            looked = max(0, len(self.seen) - len(text))
            now = time.monotonic()
            waited += min(now - last, 5)  # a machine that stands still for minutes has not kept the program waiting
            last = now
            readable = select.select([self.fd], [], [], 1)[0]
            try:
                part = os.read(self.fd, 4096) if readable else None
            except OSError:  # the other side has gone
                part = b""
            if part == b"" or waited > LIMIT_S:
                raise AssertionError(f"'{text}' has not come after {waited:.1f} s; the last of {len(self.seen)} "
                                     f"characters: {self.seen[-500:]}")
            self.seen += (part or b"").decode("utf-8", "replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OnATerminal(unittest.TestCase):
    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        # The demo model with a context that takes minutes to fill.
        model = model_with("long", "config.json")
        config = json.loads((MODEL / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 200000}))
        terminal = Terminal("--ignore-eos", "--max-context", 200000, model=model, kv_gib="0.5")
        terminal.wait_for("> ")
        terminal.type("Once upon a time.\n")
        terminal.wait_for("Once upon a time.")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.type("/stats\n")
        terminal.wait_for("1 questions and answers")
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("Ctrl-D or /exit leaves")
        terminal.wait_for("> ")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_reasoning_is_dimmed(self):
        template = file("dim.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n")
        terminal = Terminal("-n", 5, "--chat-template", template)
        terminal.wait_for("> ")
        terminal.type("Anna had a kite.\n")
        terminal.wait_for("\x1b[2m")
        terminal.wait_for("\x1b[0m")
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        self.assertEqual(terminal.end(), 0)


class WithAServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        demo_server.PROGRAM = PROGRAM
        cls.server = DemoServer("--served-model-name", "demo")
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def chat(self, text, *arguments):
        return run("chat", "--url", self.server.url, *GREEDY, *arguments, text=text)

    def test_the_same_answers(self):
        lines = "/system A dog.\nOnce upon a time.\nThen she went home.\n/stats\n"
        remote, local = self.chat(lines, "-n", 12), chat(lines, "-n", 12)
        self.assertEqual(remote.returncode, 0, remote.stderr)
        self.assertEqual(remote.stdout, local.stdout)
        self.assertRegex(remote.stderr, r"prompt \d+ tokens, answer 12 tokens")
        self.assertRegex(remote.stderr, r"of 512 tokens; 2 questions")

    def test_errors_of_the_server_are_shown(self):
        result = self.chat("hello\n", "--model", "nosuch")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "404.*nosuch")
        result = self.chat("kite " * 600 + "\nAnna.\n", "-n", 3)
        self.assertEqual(result.returncode, 1)
        self.assertIn("400", result.stderr)
        self.assertNotEqual(result.stdout, "")  # the second line has its answer

    def test_nobody_is_there(self):
        result = run("chat", "--url", "http://127.0.0.1:9", text="hello\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot connect", result.stderr)

    def test_a_key_without_a_server(self):
        result = chat("hello\n", "--api-key-file", file("key", "k\n"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("--url", result.stderr)


class Template(unittest.TestCase):
    def test_prints_the_text_as_it_is(self):
        template = file("t.jinja", "a{{ x }}\r\n\n{%- if l %}\n{{ l|tojson }}{% endif %} é\n\n")
        context = file("c.json", '{"x": "<ü>", "l": [1, "b"]}')
        result = subprocess.run([PROGRAM, "template", template, "--context", context], capture_output=True)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertEqual(result.stdout.decode(), 'a<ü>[1, "b"] é\n')

    def test_now(self):
        template = file("now.jinja", "{{ strftime_now('%d %b %Y %H:%M:%S') }}")
        for now in ("1768480496", "2026-01-15T12:34:56"):
            self.assertEqual(run("template", template, "--now", now).stdout, "15 Jan 2026 12:34:56")
        for bad in ("yesterday", "-5", "2026-02-30T00:00:00"):
            result = run("template", template, "--now", bad)
            self.assertEqual(result.returncode, 1)
            self.assertIn(bad, result.stderr)

    def test_standard_input(self):
        self.assertEqual(run("template", "-", text="{{ 1 + 1 }}").stdout, "2")
        template = file("x.jinja", "{{ x }}")
        self.assertEqual(run("template", template, "--context", "-", text='{"x": 3}').stdout, "3")
        self.assertEqual(run("template", "-", "--context", "-", text="").returncode, 1)

    def test_errors_have_a_place(self):
        context = file("empty.json", "{}")
        for name, source, place in (("syntax.jinja", "a\n{% if x %}", "syntax.jinja:2:11"),
                                    ("runtime.jinja", "a\n\n  {{ x.y }}", "runtime.jinja:3:7"),
                                    ("bomb.jinja", "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}"
                                                   "{% endfor %}", "bomb.jinja:1:")):
            result = run("template", file(name, source), "--context", context)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn(place, result.stderr)

    def test_bad_contexts_and_files(self):
        template = file("y.jinja", "{{ x }}")
        for text in ("{", "[1]", '{"x": 1} 2'):
            result = run("template", template, "--context", file("bad.json", text))
            self.assertEqual(result.returncode, 1)
            self.assertIn("bad.json", result.stderr)
        for arguments in ((SCRATCH / "none.jinja",), (template, "--context", SCRATCH / "none.json")):
            result = run("template", *arguments)
            self.assertEqual(result.returncode, 1)
            self.assertIn("none.j", result.stderr)
        self.assertNotEqual(run("template").returncode, 0)


if __name__ == "__main__":
    sys.argv.pop(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    unittest.main()
