#!/usr/bin/env python3
"""How signals end the program: at any time with a word, and with what it has done by then.

usage: signals_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]
"""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import (LIMIT_S, PATIENT, PROMPT, ProgramTest, as_user_with_default_signals, demo_model, run, scratch,
                      start_long)

SAME_SIGNAL_S = 1  # within which several count as one


def start(*arguments, **more):
    return subprocess.Popen([cli_test.PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, preexec_fn=as_user_with_default_signals, **more)


def await_or_fail(process, what):
    until = time.monotonic() + LIMIT_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def is_there(process):
    """Whether the process runs, by what the kernel says: one that has ended is there until it is waited for."""
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


class Generate(ProgramTest):
    def check_answers(self, out, answered_min=0):
        """What `start_long --json` put out: all eight answers, those that are not finished with what there is of them."""
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([a["index"] for a in answers], list(range(8)))
        finished = [a for a in answers if a["finish_reason"] == "length"]
        cancelled = [a for a in answers if a["finish_reason"] == "cancelled"]
        self.assertEqual(len(finished) + len(cancelled), 8)
        self.assertGreaterEqual(len(finished), answered_min)
        self.assertEqual(answers[: len(finished)], finished)
        for answer in answers:
            self.assertEqual(len(answer["token_ids"]), answer["generated_tokens"])
        return answers, len(finished)

    def await_requests(self, process):
        """Until the engine is there, and the main thread waits for its answers, 50 ms at a time."""
        tasks = pathlib.Path(f"/proc/{process.pid}/task")

        def pipeline_is_there():
            with contextlib.suppress(OSError):  # a thread has ended meanwhile
                return any((task / "comm").read_text().strip() == "fd-pipeline" for task in tasks.iterdir())
        await_or_fail(process, pipeline_is_there)
        status = tasks / str(process.pid) / "status"
        sleeps = lambda: int(re.search(r"(?m)^voluntary_ctxt_switches:\s*(\d+)$", status.read_text())[1])
        enough = sleeps() + 20
        await_or_fail(process, lambda: sleeps() >= enough)

    def timed_out(self, *arguments):
        """`timeout` sends SIGTERM to its child, and then to the group of both."""
        prompts = [x for i in range(8) for x in ("-p", f"{PROMPT} {i}")]
        command = [cli_test.PROGRAM, "generate", "--model", demo_model(), "--max-sequences", "1", "--kv-gib", "0.02", "-q",
                   "-n", "450", "--ignore-eos", "--fault", "delay=1:1ms", *PATIENT, *prompts, *arguments]
        return subprocess.run(["timeout", "--preserve-status", "6", *command], capture_output=True, text=True, timeout=LIMIT_S,
                              start_new_session=True, preexec_fn=as_user_with_default_signals)

    def test_timeout_loses_no_answer(self):
        result = self.timed_out("--json", "--report")
        self.assertEqual(result.returncode, 128 + signal.SIGTERM, result.stderr)
        answers, finished = self.check_answers(result.stdout)
        if finished < 8:
            self.assertGreater(answers[finished]["generated_tokens"], 0)
        self.assertIn(f"fastdecode: {finished} of 8 prompts were answered\nfastdecode: interrupted\n", result.stderr)
        self.assertIn("time to first token", result.stderr)

    def test_timeout_of_text(self):
        result = self.timed_out("--report")
        self.assertEqual(result.returncode, 128 + signal.SIGTERM, result.stderr)
        finished = int(re.search(r"(\d) of 8 prompts were answered", result.stderr)[1])
        headings = re.findall(r"(?m)^== (\d) of 8(: cancelled)?$", result.stdout)
        self.assertEqual(headings, [(str(i + 1), "") for i in range(finished + 1)] + [(str(finished + 1), ": cancelled")])
        self.assertIn("time to first token", result.stdout)

    def test_signals_within_a_second_are_one(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT),
                              (signal.SIGHUP, signal.SIGTERM)):
            with self.subTest(first=first, second=second):
                process = start_long("--json")
                self.await_requests(process)
                process.send_signal(first)
                time.sleep(0.01)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(second)
                out, err = process.communicate(timeout=LIMIT_S)
                self.assertEqual(process.returncode, 128 + first, err)
                _, finished = self.check_answers(out)
                self.assertEqual(err, f"fastdecode: {finished} of 8 prompts were answered\nfastdecode: interrupted\n")

    def unread(self):
        """A process that waits for a reader, as its pipe is full."""
        process = start_long()
        self.await_full(process, process.stdout)
        return process

    def await_full(self, process, pipe):
        fcntl.fcntl(pipe, 1031, 4096)  # F_SETPIPE_SZ
        pending = lambda: int.from_bytes(fcntl.ioctl(pipe, 0x541B, b"\0" * 4), sys.byteorder)  # FIONREAD
        last = [0, time.monotonic()]

        def is_full():
            if pending() != last[0]:
                last[:] = pending(), time.monotonic()
            return last[0] > 0 and time.monotonic() - last[1] > 1.5
        await_or_fail(process, is_full)

    def test_a_second_signal_ends_what_waits_for_a_reader(self):
        process = self.unread()
        process.send_signal(signal.SIGTERM)
        time.sleep(SAME_SIGNAL_S + 0.2)
        self.assertTrue(is_there(process))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(2), 128 + signal.SIGINT)
        self.assertEqual(process.stderr.read(), "fastdecode: interrupted\n")
        for pipe in (process.stdout, process.stderr):
            pipe.close()

    def test_a_reader_that_does_not_read_is_not_waited_for_long(self):
        process = self.unread()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)
        self.assertIn("nobody has read stdout", process.stderr.read())
        for pipe in (process.stdout, process.stderr):
            pipe.close()

    def test_stderr_in_the_same_full_pipe(self):
        reading, writing = os.pipe()
        with open(reading), open(writing, "w") as out:
            process = subprocess.Popen([cli_test.PROGRAM, "generate", "-m", demo_model(), "--kv-gib", "0.05", "-q", "-n", "450",
                                        "--ignore-eos", *PATIENT, *[x for i in range(20) for x in ("-p", f"Anna {i}")]],
                                       stdout=out, stderr=out, preexec_fn=as_user_with_default_signals)
            self.await_full(process, reading)
            process.send_signal(signal.SIGTERM)
            time.sleep(SAME_SIGNAL_S + 0.2)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)

    def test_a_prompt_that_is_being_read(self):
        ids = ",".join(["5"] * 500)
        process = start("generate", "-m", demo_model(), "--prompt-ids", ids, "-n", 5, "--json", "-q", "--kv-gib", "0.05",
                        "--prefill-chunk", 1, "--fault", "delay=1:1ms", *PATIENT)
        self.await_requests(process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        answer = json.loads(out)
        self.assertEqual((answer["finish_reason"], answer["generated_tokens"]), ("cancelled", 0))


class Loading(ProgramTest):
    """While an engine is made. A worker that does not answer holds that up for ten seconds, as a large model would."""

    @contextlib.contextmanager
    def silent_worker(self):
        path = scratch(f"silent-{time.monotonic_ns()}.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(LIMIT_S)

            def await_engine():
                return listener.accept()[0]
            yield path, await_engine

    def test_a_signal_ends_it_at_once(self):
        for by, *command in ((signal.SIGINT, "generate", "-p", PROMPT), (signal.SIGTERM, "generate", "-p", PROMPT, "--json"),
                             (signal.SIGHUP, "chat"), (signal.SIGTERM, "bench", "step"), (signal.SIGINT, "latency", "step")):
            with self.subTest(command=command), self.silent_worker() as (path, await_engine):
                process = start(*command, "-m", demo_model(), "-q", "--homes", f"unix:{path}", stdin=subprocess.DEVNULL)
                with await_engine():
                    begun = time.monotonic()
                    process.send_signal(by)
                    out, err = process.communicate(timeout=LIMIT_S)
                    self.assertLess(time.monotonic() - begun, 5)
                self.assertEqual((process.returncode, out, err),
                                 (128 + by, "", "fastdecode: interrupted while the model was being loaded\n"))

    def test_a_signal_ends_a_server(self):
        with self.silent_worker() as (path, await_engine):
            process = start("serve", "-m", demo_model(), "--port", 0, "--homes", f"unix:{path}", "--access-log", "none")
            with await_engine():
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate(timeout=LIMIT_S)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM)
            self.assertIn("ended by a signal while the model was being loaded", err)

    def test_nohup_is_obeyed(self):
        with self.silent_worker() as (path, await_engine):
            process = subprocess.Popen([cli_test.PROGRAM, "generate", "-m", demo_model(), "-p", "A", "--homes", f"unix:{path}"],
                                       stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            with await_engine():
                process.send_signal(signal.SIGHUP)
                _, err = process.communicate(timeout=LIMIT_S)
            self.assertEqual(process.returncode, 1)
            self.assertIn("did not answer in time", err)

    def test_an_engine_that_loads_says_so_to_latency_attach(self):
        with self.silent_worker() as (path, await_engine):
            process = start("generate", "-m", demo_model(), "-p", "A", "--homes", f"unix:{path}")
            with await_engine():
                self.refused(run("latency", "attach", process.pid), f"process {process.pid} (fastdecode) is still loading its model",
                             "try again")
                process.kill()
                process.communicate()


class Others(ProgramTest):
    def test_what_has_no_engine_says_that_it_was_interrupted(self):
        for by, *command in ((signal.SIGINT, "bench", "memory"), (signal.SIGTERM, "latency", "kernel"),
                             (signal.SIGTERM, "generate", "-m", demo_model(), "-f", "-")):
            with self.subTest(command=command):
                process = start(*command, stdin=subprocess.PIPE)
                time.sleep(1)
                process.send_signal(by)
                out, err = process.communicate(timeout=LIMIT_S)
                self.assertEqual((process.returncode, out), (128 + by, ""), err)
                self.assertTrue(err.endswith("fastdecode: interrupted\n"), err)

    def test_timeout_ends_a_worker_in_good_order(self):
        path = scratch("timed.sock")
        result = subprocess.run(["timeout", "--preserve-status", "4", cli_test.PROGRAM, "worker", "--listen", f"unix:{path}",
                                 "--kv-gib", "0.5"], capture_output=True, text=True, timeout=LIMIT_S, start_new_session=True,
                                preexec_fn=as_user_with_default_signals)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the worker is ending", result.stderr)
        self.assertFalse(path.exists())

    def test_a_worker_that_is_told_twice(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)):
            with cli_test.Worker(f"told-{first}-{second}.sock", kv_gib="1") as worker:
                worker.process.send_signal(first)
                worker.process.send_signal(second)
                self.assertEqual(worker.process.wait(LIMIT_S), 0)
                self.assertFalse(worker.path.exists())

    def test_a_worker_that_takes_its_memory_is_ended_by_a_second_signal(self):
        gib = 3  # a second or so
        available = int(re.search(r"MemAvailable:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1])
        if available < 2 * gib << 20:
            self.skipTest(f"needs {2 * gib} GiB of memory")
        path = scratch("slow.sock")
        process = start("worker", "--listen", f"unix:{path}", "--kv-gib", gib, "--r-threads", 1)
        await_or_fail(process, path.exists)
        process.send_signal(signal.SIGTERM)
        time.sleep(SAME_SIGNAL_S + 0.2)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        _, err = process.communicate(timeout=LIMIT_S)
        self.assertIn(process.returncode, (0, 128 + signal.SIGTERM), err)
        self.assertLess(time.monotonic() - begun, 20)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cli_test.PROGRAM, cli_test.ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
