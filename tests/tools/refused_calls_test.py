#!/usr/bin/env python3
"""What the program does where the kernel refuses it system calls, as filters of containers and services do.

usage: refused_calls_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]
"""
import ctypes
import errno
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import unittest

import cli_test
from cli_test import PATIENT, PROMPT, ProgramTest, scratch

# Of x86-64.
CALLS = {
    "madvise": 28, "socket": 41, "setpriority": 141, "mlock": 149, "mlockall": 151, "prctl": 157, "sched_setaffinity": 203,
    "sched_getaffinity": 204, "io_setup": 206, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "migrate_pages": 256,
    "move_pages": 279, "timerfd_create": 283, "eventfd2": 290, "epoll_create1": 291, "perf_event_open": 298, "prlimit64": 302,
    "getcpu": 309, "process_vm_readv": 310, "sched_setattr": 314, "sched_getattr": 315, "getrandom": 318,
    "memfd_create": 319, "userfaultfd": 323, "membarrier": 324, "statx": 332, "rseq": 334, "io_uring_setup": 425,
    "pidfd_open": 434, "epoll_pwait2": 441}
ERRORS = {errno.EPERM: "Operation not permitted", errno.ENOSYS: "Function not implemented"}
# Those without which an engine runs as well as with them on a machine of one node: nothing is said of them.
OF_NO_CONSEQUENCE = set(CALLS) - {"sched_setaffinity", "sched_getaffinity", "memfd_create", "socket", "eventfd2", "madvise"}
# Two teams.
SPLIT = ["--kv-gib", "0.02", "--max-sequences", "8", "--core-plan", "split", "--r-threads", "1", "--poll", "yield", *PATIENT]


def refuse(error, *names):
    """To be called between fork and exec: from then on the kernel answers these calls with the error."""
    load, equal, done, allowed = 0x20, 0x15, 0x06, 0x7FFF0000
    lines = [(load, 0, 0, 0)]
    for name in names:
        lines += [(equal, 0, 1, CALLS[name]), (done, 0, 0, 0x50000 | error)]
    lines.append((done, 0, 0, allowed))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, filters, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def can_refuse():
    try:
        seen = subprocess.run(["true"], preexec_fn=lambda: refuse(errno.EPERM, "userfaultfd"))
    except (OSError, subprocess.SubprocessError):
        return False
    return seen.returncode == 0


@unittest.skipUnless(os.uname().machine == "x86_64" and can_refuse(), "the kernel takes no filter of system calls here")
class RefusedCalls(ProgramTest):
    def run_refused(self, error, names, *arguments):
        return cli_test.run(*arguments, preexec_fn=lambda: refuse(error, *names))

    def generate(self, error, names, *arguments):
        return self.run_refused(error, names, "generate", "-m", cli_test.demo_model(), *SPLIT, "--spart", "cpu", "--json",
                                "-p", PROMPT, "-n", 12, "--temp", 0, "--exact", *arguments)

    def ids(self, result):
        return json.loads(self.succeed(result))["token_ids"]

    def lines_about(self, result, name):
        return [line for line in result.stderr.splitlines() if re.search(rf"\b{name}\b", line)]

    def warned_once(self, result, name, error, *needles):
        lines = self.lines_about(result, name)
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("fastdecode: warning: "), lines[0])
        for needle in (f"{name}: {ERRORS[error]}", *needles):
            self.assertIn(needle, lines[0])

    def test_what_is_of_no_consequence_is_not_spoken_of(self):
        quiet = self.generate(errno.EPERM, [])
        ids, said = self.ids(quiet), len(quiet.stderr.splitlines())
        for error in ERRORS:
            for name in sorted(OF_NO_CONSEQUENCE):
                with self.subTest(call=name, error=ERRORS[error]):
                    result = self.generate(error, [name])
                    self.assertEqual(self.ids(result), ids)
                    self.assertEqual(len(result.stderr.splitlines()), said, result.stderr)
                    self.assertEqual(self.lines_about(result, name), [])
            with self.subTest(call="all of them", error=ERRORS[error]):
                self.assertEqual(self.ids(self.generate(error, sorted(OF_NO_CONSEQUENCE))), ids)

    def test_threads_that_are_not_pinned_are_counted(self):
        ids = self.ids(self.generate(errno.EPERM, []))
        for error in ERRORS:
            result = self.generate(error, ["sched_setaffinity"], "--s-threads", 2)
            self.assertEqual(self.ids(result), ids)
            self.warned_once(result, "sched_setaffinity", error, "3 of 3 threads", "S-Part 2 of 2", "home0 1 of 1",
                             "--security-opt seccomp=", "SystemCallFilter")
            alone = self.generate(error, ["sched_setaffinity"], "--s-threads", 1)
            self.warned_once(alone, "sched_setaffinity", error, "2 of 2 threads", "S-Part 1 of 1", "home0 1 of 1")
            homes = self.generate(error, ["sched_setaffinity"], "--s-threads", 2, "--homes", "local:2")
            self.warned_once(homes, "sched_setaffinity", error, "4 of 4 threads", "home0 1 of 1, home1 1 of 1")
            self.assertNotIn("could not be pinned", homes.stderr)

    def test_a_worker_counts_its_threads(self):
        with Refused(errno.EPERM, ["sched_setaffinity"], "pins.sock", "--r-threads", "2", "--poll", "yield") as worker:
            self.ids(self.generate(errno.EPERM, [], "--homes", f"unix:{worker.path}"))
            self.ids(self.generate(errno.EPERM, [], "--homes", f"unix:{worker.path}"))
            self.assertEqual(worker.end(), 0)
        about = [line for line in worker.lines if "pinned" in line]
        self.assertEqual(len(about), 1, worker.lines)
        for needle in ("2 of 2 threads", "home0 2 of 2", "sched_setaffinity: Operation not permitted"):
            self.assertIn(needle, about[0])
        self.assertNotIn("S-Part", about[0])

    def test_an_affinity_that_is_not_told_is_read_from_proc(self):
        core = max(os.sched_getaffinity(0))
        for error in ERRORS:
            result = self.generate(error, ["sched_getaffinity"])
            self.ids(result)
            self.warned_once(result, "sched_getaffinity", error, "/proc/thread-self/status")

            def on_one_core():
                os.sched_setaffinity(0, {core})
                refuse(error, "sched_getaffinity")
            one = cli_test.run("generate", "-m", cli_test.demo_model(), "--kv-gib", "0.02", "--max-sequences", "8", *PATIENT,
                               "--spart", "cpu", "-p", PROMPT, "-n", 2, "--report", preexec_fn=on_one_core)
            self.assertRegex(self.succeed(one), rf"(?m)^S-Part: 1 thread on cores {core}$")
        both = self.generate(errno.EPERM, ["sched_getaffinity", "sched_setaffinity"])
        self.ids(both)
        self.warned_once(both, "sched_getaffinity", errno.EPERM)
        self.warned_once(both, "sched_setaffinity", errno.EPERM)

    def test_a_recording_that_nobody_asked_for_stops_nothing(self):
        for error in ERRORS:
            for name in ("memfd_create", "socket"):
                with self.subTest(call=name, error=ERRORS[error]):
                    result = self.generate(error, [name])
                    self.ids(result)
                    self.warned_once(result, name, error, "latency attach", "--record-socket")
                    off = self.generate(error, [name], "--record-socket", "off")
                    self.ids(off)
                    self.assertNotIn("warning", off.stderr)
                    asked = self.run_refused(error, [name], "generate", "-m", cli_test.demo_model(), *SPLIT, "--spart", "cpu",
                                             "-p", PROMPT, "--record-socket", f"{cli_test.SCRATCH}/{name}.sock")
                    self.refused(asked, "--record-socket", f"{name}: {ERRORS[error]}")

    def test_huge_pages_that_are_not_given(self):
        for error in ERRORS:
            result = self.generate(error, ["madvise"])
            self.ids(result)
            self.warned_once(result, "madvise", error, "home0", "small pages")

    def test_a_server_says_what_it_cannot_do(self):
        for error in ERRORS:
            for name, needle in (("prlimit64", "the limit of descriptors"), ("setpriority", "take time from the engine's"),
                                 ("sched_setaffinity", "cannot be pinned")):
                with self.subTest(call=name, error=ERRORS[error]):
                    process = subprocess.Popen([cli_test.PROGRAM, "serve", "-m", cli_test.demo_model(), "--port", "0", *SPLIT,
                                                "--access-log", "none", "--spart", "cpu"], stderr=subprocess.PIPE, text=True,
                                               preexec_fn=lambda: refuse(error, name))
                    lines = []
                    for line in process.stderr:
                        lines.append(line)
                        if "ready on" in line:
                            process.terminate()
                    self.assertEqual(process.wait(cli_test.LIMIT_S), 0, lines)
                    process.stderr.close()
                    about = [line for line in lines if ERRORS[error] in line]
                    self.assertEqual(len(about), 1, lines)
                    self.assertIn("fastdecode: warning: ", about[0])
                    self.assertIn(needle, about[0])

    def test_what_is_recorded_in_the_process_needs_no_memfd(self):
        result = self.run_refused(errno.EPERM, ["memfd_create"], "latency", "step", "-m", cli_test.demo_model(), "--kv-gib", "0.05",
                                  "--concurrency", 2, "--warmup-seconds", 0.1, "--seconds", 100, "--max-events", 2000, "--json",
                                  "-q", *PATIENT)
        self.assertGreater(json.loads(self.succeed(result))["critical_path"]["tokens"], 1)

    def test_a_link_to_a_worker_needs_a_memfd(self):
        with Refused(errno.EPERM, [], "memfd.sock") as worker:
            result = self.generate(errno.EPERM, ["memfd_create"], "--homes", f"unix:{worker.path}")
            self.refused(result, "no memory that processes can share: memfd_create: Operation not permitted")
            self.assertEqual(worker.end(), 0)

    def test_no_way_to_wake_threads_is_an_error(self):
        for error in ERRORS:
            result = self.generate(error, ["eventfd2"])
            self.refused(result, f"eventfd: {ERRORS[error]}")
            worker = self.run_refused(error, ["eventfd2"], "worker", "--listen", f"unix:{cli_test.SCRATCH}/e.sock", "--kv-gib", "0.02")
            self.refused(worker, f"eventfd: {ERRORS[error]}")

    def test_the_other_commands(self):
        everything = sorted(CALLS)
        for error in ERRORS:
            with self.subTest(error=ERRORS[error]):
                doctor = self.run_refused(error, everything, "doctor", "--json")
                self.assertIn(doctor.returncode, (0, 1))  # 1: there is no RDMA here
                checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
                self.assertEqual(checks["pinning"]["status"], "warning")
                self.assertIn(f"sched_setaffinity: {ERRORS[error]}", checks["pinning"]["found"])
                self.succeed(self.run_refused(error, everything, "inspect", "-m", cli_test.demo_model()))
                for command in (["latency", "hiccup", "--seconds", 0.2],
                                ["latency", "fabric", "--rounds", 10, "--bytes-max", 8]):
                    names = [name for name in everything if name not in ("socket", "memfd_create", "eventfd2")]
                    result = self.run_refused(error, names, *command)
                    self.succeed(result)
                    self.warned_once(result, "sched_setaffinity", error, "figures are of any cores")
                    self.warned_once(result, "sched_getaffinity", error, "/proc")


class Refused(cli_test.Worker):
    """A worker that is refused calls."""

    def __init__(self, error, names, socket, *arguments):
        self.filter = lambda: (cli_test.as_user_with_default_signals(), refuse(error, *names))
        super().__init__(socket, *arguments)

    def prepare(self):
        self.filter()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cli_test.PROGRAM, cli_test.ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
