#!/usr/bin/env python3
"""Drives `fastdecode chat --url` against a server that says what a test wants it to.

usage: chat_remote_test.py PROGRAM [unittest arguments]
"""
import http.server
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(1, str(pathlib.Path(__file__).parent / "serve"))
from server_process import LIMIT_S

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else ""
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = tempfile.TemporaryDirectory(prefix="fd-chat-remote-")
SCRATCH = pathlib.Path(FOLDER.name)
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
MODELS = {"data": [{"id": "first", "max_model_len": 512}, {"id": "second", "max_model_len": 256}]}


def said(**delta):
    return {"choices": [{"delta": delta}]}


class Server(http.server.ThreadingHTTPServer):
    """`answers`: what each question gets, in their order: a list of events, of which a text is sent as it is and a callable
    is called, or (status, body). The last one is for all further questions, too."""

    daemon_threads = True

    def __init__(self, *answers, models=MODELS, key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.models, self.key = list(answers), models, key
        self.bodies, self.heads = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):  # such as a client that has left
        pass

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def whole(self, status, body):
        self.send_response(status)
        data = json.dumps(body).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if self.server.key is None or self.headers["Authorization"] == f"Bearer {self.server.key}":
            return False
        self.whole(401, {"error": {"message": "who are you?"}})
        return True

    def do_GET(self):
        self.server.heads.append(self.headers)
        if self.refused():
            return
        if self.server.models is None:
            self.whole(404, {"error": "no such path"})
        else:
            self.whole(200, self.server.models)

    def do_POST(self):
        self.server.heads.append(self.headers)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.bodies.append(body)
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, tuple):
            self.whole(*answer)
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in answer:
            if callable(event):
                event()
                continue
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()


def run(*arguments, text="", **more):
    return subprocess.run([PROGRAM, *map(str, arguments)], input=text, capture_output="stdout" not in more, text=True,
                          timeout=LIMIT_S, **more)


def file(name, text):
    path = SCRATCH / name
    path.write_text(text)
    return path


ANSWER = [said(content="yes"), END, "[DONE]"]


class Requests(unittest.TestCase):
    def bodies(self, *options, questions=1):
        with Server(ANSWER) as server:
            result = run("chat", "--url", server.url, *options, text="a\n" * questions)
            self.assertEqual(result.returncode, 0, result.stderr)
            return server.bodies

    def test_options_are_sent(self):
        (body,) = self.bodies("--logit-bias", "15:-2.5", "--logit-bias", "7:1", "--include-stop", "--show-special", "-n", 9,
                              "--min-tokens", 2, "--stop", "x", "--stop-token-ids", 3, "--ignore-eos", "--top-k", 5)
        self.assertEqual({name: body[name] for name in body if name not in ("messages", "stream", "stream_options", "model")},
                         {"logit_bias": {"15": -2.5, "7": 1.0}, "include_stop_str_in_output": True,
                          "skip_special_tokens": False, "max_completion_tokens": 9, "min_tokens": 2, "stop": ["x"],
                          "stop_token_ids": [3], "ignore_eos": True, "top_k": 5})

    def test_what_is_not_given_is_left_to_the_server(self):
        (body,) = self.bodies()
        self.assertEqual(set(body), {"model", "messages", "stream", "stream_options"})

    def test_each_question_has_a_seed_of_its_own(self):
        self.assertEqual([body["seed"] for body in self.bodies("--seed", 5, questions=3)], [5, 6, 7])
        self.assertEqual([body["seed"] for body in self.bodies("--seed", 0, questions=2)], [0, 1])

    def test_engine_options_are_refused(self):
        for option in ("--kv-gib", "--chat-template"):
            result = run("chat", "--url", "http://127.0.0.1:9", option, "1", text="a\n")
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, f"{option}: .*--url")

    def test_heads(self):
        with Server(ANSWER, key="secret") as server:
            result = run("chat", "--url", server.url, "--api-key-file", file("key", "secret\r\nmore\n"), text="a\n")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual({head["Host"] for head in server.heads}, {server.url[len("http://"):]})
            self.assertEqual(len(server.heads), 2)

    def test_a_key_that_is_missing(self):
        with Server(ANSWER, key="secret") as server:
            for options in ((), ("--model", "second")):
                result = run("chat", "--url", server.url, *options, text="a\n")
                self.assertEqual(result.returncode, 1)
                self.assertRegex(result.stderr, "401.*--api-key-file")

    def test_a_server_that_lists_no_models(self):
        with Server(ANSWER, models=None) as server:
            result = run("chat", "--url", server.url, "--model", "mine", text="a\n/stats\n")
            self.assertEqual((result.returncode, result.stdout), (0, "yes\n"), result.stderr)
            self.assertEqual(server.bodies[0]["model"], "mine")
            self.assertIn("of unknown tokens", result.stderr)
            result = run("chat", "--url", server.url, text="a\n")
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, "/v1/models.*404")


class Answers(unittest.TestCase):
    def test_a_question_without_an_answer_is_forgotten(self):
        for unanswered in ((500, {"error": "not today"}), [END, "[DONE]"], [said(reasoning_content="hm"), END, "[DONE]"],
                           [{"error": {"message": "broken"}}]):
            with self.subTest(unanswered=unanswered), Server(unanswered, ANSWER) as server:
                run("chat", "--url", server.url, text="first\nsecond\nthird\n")
                self.assertEqual([[m["content"] for m in body["messages"]] for body in server.bodies],
                                 [["first"], ["second"], ["second", "yes", "third"]])

    def test_counts_that_are_none(self):
        for usage in ({"prompt_tokens": "7", "completion_tokens": None}, {"prompt_tokens": 1.5, "completion_tokens": [3]}, {},
                      {"prompt_tokens": -9, "completion_tokens": {}}, "none", 7):
            with self.subTest(usage=usage), Server([said(content="yes"), dict(END, usage=usage), "[DONE]"]) as server:
                result = run("chat", "--url", server.url, text="a\n/stats\n")
                self.assertEqual((result.returncode, result.stdout), (0, "yes\n"), result.stderr)
                self.assertRegex(result.stderr, "prompt unknown tokens, answer unknown tokens; first token after .*, rate unknown,")

    def test_times_that_are_unknown(self):
        with Server(["[DONE]"]) as server:
            result = run("chat", "--url", server.url, text="a\n/stats\n")
            self.assertRegex(result.stderr, r"time of the first token unknown, rate unknown, [\d.]+ s in all")
            self.assertNotRegex(result.stderr, r"-\d")

    def test_chunks_of_any_shape(self):
        shapes = ([], {}, {"choices": 7}, {"choices": [7]}, {"choices": [{"delta": 7}]}, {"choices": [{"delta": {"content": 7}}]},
                  {"error": 7}, {"error": {"message": 7}})
        for shape in shapes:
            with self.subTest(shape=shape), Server([shape, *ANSWER]) as server:
                self.assertIn(run("chat", "--url", server.url, text="a\n").returncode, (0, 1))
        for models in ([], {"data": [7]}, {"data": 7}, {"data": [{"id": "x", "max_model_len": "y"}]}):
            with self.subTest(models=models), Server(ANSWER, models=models) as server:
                self.assertIn(run("chat", "--url", server.url, text="a\n").returncode, (0, 1))

    def test_reasoning_that_breaks_off_ends(self):
        with Server([said(reasoning_content="hm"), "this is no JSON"]) as server:
            result = run("chat", "--url", server.url, text="a\n")
            self.assertEqual((result.returncode, result.stdout), (1, "[reasoning]\nhm\n[answer]\n\n"))
            pid, fd = pty.fork()
            if pid == 0:
                os.execv(PROGRAM, [PROGRAM, "chat", "--url", server.url])
            os.write(fd, b"a\n\x04")
            seen = b""
            while select.select([fd], [], [], LIMIT_S)[0]:
                try:
                    part = os.read(fd, 4096)
                except OSError:  # the other side has gone
                    break
                if not part:
                    break
                seen += part
                if b"no JSON" in seen and b"> " in seen.split(b"no JSON", 1)[1]:
                    os.write(fd, b"\x04")
            os.waitpid(pid, 0)
            os.close(fd)
            self.assertRegex(seen.split(b"\x1b[2m", 1)[1], rb"(?s)^hm\x1b\[0m.*no JSON")


class TheProgram(unittest.TestCase):
    def test_a_full_output_ends_it(self):
        with Server(ANSWER) as server, open("/dev/full", "w") as full:
            result = run("chat", "--url", server.url, text="a\nb\n", stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(len(re.findall("stdout: cannot be written", result.stderr)), 1)
            self.assertTrue(result.stderr.startswith("fastdecode: error: stdout"), result.stderr)
            self.assertEqual(len(server.bodies), 1)

    def test_a_bad_bias_is_found_first(self):
        for where in (("--model", SCRATCH / "none"), ("--url", "http://127.0.0.1:9")):
            for bias in ("x", "5", "5:", "5:nan"):
                result = run("chat", *where, "--logit-bias", bias, text="a\n")
                self.assertEqual(result.returncode, 1)
                self.assertIn("--logit-bias", result.stderr)

    def test_help_is_of_chats(self):
        text = run("chat", "--help").stdout
        self.assertNotIn("--logprobs", text)
        self.assertNotIn("--no-special-tokens", text)
        self.assertNotIn("[128]", text)
        self.assertRegex(text, r"(?s)--max-tokens.{1,200}to the end of the\s+context")

    def test_answers_may_be_longer_than_those_of_generate(self):
        with Server(ANSWER) as server:
            result = run("chat", "--url", server.url, "--min-tokens", 4000, text="a\n")
            self.assertEqual(result.returncode, 0, result.stderr)

    def interrupted(self, text, ignored=False):
        """The exit code after Ctrl-C, once a question has come or, without one, once it reads its input."""
        asked, go_on = threading.Event(), threading.Event()
        with Server([asked.set, said(content="half"), lambda: go_on.wait(LIMIT_S), *ANSWER]) as server:
            def prepare():
                signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
            process = subprocess.Popen([PROGRAM, "chat", "--url", server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, preexec_fn=prepare)
            process.stdin.write(text.encode())
            process.stdin.flush()
            if text:
                self.assertTrue(asked.wait(LIMIT_S))
            else:
                self.wait_for_handler(process.pid)
            process.send_signal(signal.SIGINT)
            if ignored:
                time.sleep(0.3)
                self.assertIsNone(process.poll())
                go_on.set()
            out, _ = process.communicate(timeout=LIMIT_S) if ignored else (b"", process.wait(timeout=LIMIT_S))
            go_on.set()
            process.stdin.close() if not process.stdin.closed else None
            process.stdout.close()
            process.stderr.close()
            return process.returncode, out

    def wait_for_handler(self, pid):
        """Until the process catches SIGINT."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            caught = re.search(r"SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]
            if int(caught, 16) >> (signal.SIGINT - 1) & 1:
                return
            time.sleep(0.01)
        self.fail("it does not catch SIGINT")

    def test_ctrl_c_ends_it_where_nobody_types(self):
        self.assertEqual(self.interrupted("a\n")[0], 130)
        self.assertEqual(self.interrupted("")[0], 130)

    def test_an_ignored_ctrl_c_stays_ignored(self):
        self.assertEqual(self.interrupted("a\n", ignored=True), (0, b"halfyes\n"))


class Demo(unittest.TestCase):
    def test_its_hint_says_what_the_server_asks_for(self):
        source = re.search(r"(?ms)^pass_log_on\(\) \{.*?^\}\n", (ROOT / "tools/demo").read_text())[0]
        for options, key in (("", False), ("'-H \"Authorization: Bearer KEY\"'", True)):
            script = f"program=fastdecode\n{source}\necho 'x: ready on http://h:1' | pass_log_on demo {options}"
            result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
            (hint,) = re.findall("or chat with it: (.*)", result.stdout)
            self.assertEqual(hint, "fastdecode chat --url http://h:1" + (" --api-key-file KEY_FILE" if key else ""))


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
