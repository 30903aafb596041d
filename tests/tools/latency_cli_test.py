#!/usr/bin/env python3
"""Drives `fastdecode latency` as a user does.

usage: latency_cli_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]
"""
import contextlib
import csv
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

sys.path.insert(1, str(pathlib.Path(__file__).parent / "latency"))
import check_trace
import cli_test
from cli_test import LIMIT_S, PATIENT, SMALL, SCRATCH, ProgramTest, demo_model, run, start_long

# Recordings last until so much is in them, on any machine.
SOME, LITTLE = 20000, 3000
LOAD = {"--concurrency": 4, "--prompt-tokens": "8-16", "--output-tokens": "10-20", "--warmup-seconds": 0.3, "--seconds": 100,
        "--max-events": SOME}
SUFFIXES = [".json", ".csv", ".tokens.csv", ".prom", ".html", ".trace.json"]


def step(*arguments):
    load = [x for option, value in LOAD.items() if option not in arguments for x in (option, value)]
    return run("latency", "step", "-m", demo_model(), "-q", "--kv-gib", "0.05", *PATIENT, *load, *arguments)


class EngineAtWork:
    """A `generate` of many prompts that has begun to answer, whose pipes never fill: an engine waits for its reader."""

    def __init__(self, prompts, *arguments):
        self.process = start_long(*[x for i in range(prompts) for x in ("-p", f"Anna {i}")], *arguments)
        self.pid = self.process.pid
        self.begun = self.process.stdout.read(10)
        self.readers = [threading.Thread(target=pipe.read) for pipe in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()

    def __enter__(self):
        assert self.begun, "it ended before it said a word"
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.end()

    def end(self):
        for reader in self.readers:
            reader.join()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()
        self.process.stderr.close()


# So many that it is attached to twice on any machine: minutes.
MANY = 100


def await_condition(process, what):
    """Until `what` says so of a process that goes on."""
    until = time.monotonic() + LIMIT_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def await_thread(process, name):
    def is_there():
        with contextlib.suppress(OSError):  # a thread has ended meanwhile
            return any((task / "comm").read_text().strip() == name for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir())

    await_condition(process, is_there)


def await_sleeps(process, count):
    """Until the main thread has slept so often."""
    def sleeps():
        text = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/status").read_text()
        return int(re.search(r"(?m)^voluntary_ctxt_switches:\s*(\d+)$", text)[1])

    enough = sleeps() + count
    await_condition(process, lambda: sleeps() >= enough)


def start(*arguments):
    return subprocess.Popen([cli_test.PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=cli_test.as_user_with_default_signals)


class Recorded(ProgramTest):
    RECORDING = ["--seconds", 100, "--max-events", LITTLE]

    def await_recorded(self, process, engine_pid):
        """Until a process that is told to record an engine has got something of it."""
        await_sleeps(process, 30)  # of 20 ms each: it records
        # Where others have the cores, the engine may not be there yet.
        end = time.monotonic() + cli_test.LIMIT_S
        while (attached := run("latency", "attach", engine_pid, *self.RECORDING)).returncode != 0 and time.monotonic() < end:
            time.sleep(0.2)
        self.succeed(attached)
        await_sleeps(process, 2)  # what that saw, it has read

    def check_sums(self, result):
        """The parts of a token are its time."""
        path = result["critical_path"]
        self.assertGreater(path["tokens"], 20)
        parts = sum(part["mean_ns"] for part in path["parts"])
        self.assertAlmostEqual(parts + path["residual_ns"], path["token_ns"], delta=1)
        self.assertLess(abs(path["residual_ns"]), 0.02 * path["token_ns"])
        # One team for both parts attends within the stages.
        one_team = result["engine"]["core_plan"] == "shared"
        self.assertTrue({"S-Part", *([] if one_team else ["home attend"])} <= {part["place"] for part in path["parts"]}, path["parts"])
        self.assertEqual(one_team, "attention" in {phase["name"] for phase in result["phases"]}, result["phases"])


class Step(Recorded):
    def test_what_is_said_and_what_is_saved(self):
        files = [SCRATCH / f"step{suffix}" for suffix in SUFFIXES]
        text = self.succeed(step(*[x for file in files for x in ("--save", file)]))
        for needle in ("VERDICT", "S-Part stage", "GEMM", "atten", "THE MEAN TOKEN", "residual", "ACHIEVED",
                       "WORST TOKENS", "TTFT", "ITL", "cost of recording", "weights read"):
            self.assertIn(needle, text)
        for file in files:
            self.assertGreater(file.stat().st_size, 200, file)
        result = json.loads(files[0].read_text())
        self.check_sums(result)
        self.assertEqual(result["command"], "step")
        self.assertIn((result["engine"]["core_plan"], result["engine"]["micro_batches"]), [("shared", 1), ("split", 2)])
        with open(files[2]) as tokens:
            self.assertGreaterEqual(len(list(csv.DictReader(tokens))), result["critical_path"]["tokens"])
        self.assertIn("traceEvents", json.loads(files[5].read_text()))
        self.assertNotRegex(files[4].read_text(), r"(src|href)\s*=\s*[\"']?https?:")

    def test_an_open_loop_keeps_intended_starts(self):
        text = self.succeed(run("latency", "step", "-m", demo_model(), "-q", "--kv-gib", "0.05", "--rate", 40, "--arrivals",
                                "constant", "--prompt-tokens", 8, "--output-tokens", 4, "--warmup-seconds", 0.3, "--seconds",
                                100, "--max-events", LITTLE, "--json", *PATIENT))
        starts = [(figures["start"], figures["requests"]) for figures in json.loads(text)["requests"]]
        self.assertEqual([start for start, _ in starts], ["intended", "submitted"])
        self.assertGreater(starts[0][1], 5)

    def test_limits_give_a_verdict(self):
        short = ["--output-tokens", 4]
        met = step(*short, "--slo", "ttft:1000s,p50", "--slo", "itl:1000s,p50")
        self.assertEqual(met.returncode, 0, met.stderr)
        missed = step(*short, "--slo", "ttft:1000s,p50", "--slo", "itl:1ns,p50")
        self.assertEqual(missed.returncode, 2, missed.stderr)
        self.assertNotIn("error", missed.stderr)
        self.assertIn("itl:1ns,p50", missed.stdout)

    def test_other_formats(self):
        for name, needle in [("csv", "phase,where,count"), ("prometheus", "# TYPE fastdecode_latency_")]:
            self.assertIn(needle, self.succeed(step("--format", name)))

    def test_stages_that_a_gpu_runs(self):
        files = [SCRATCH / f"gpu{suffix}" for suffix in (".json", ".trace.json")]
        gpu = ["--spart", "cuda", "--cuda-module", os.environ["SOFT_GPU_MODULE"], "--compute", "f32"]
        text = self.succeed(step(*gpu, "--max-events", LITTLE // 2, *[x for file in files for x in ("--save", file)]))
        self.assertNotIn("weights read", text)  # by cores that the weights are not near to
        result = json.loads(files[0].read_text())
        self.check_sums(result)
        shares = {phase["name"]: phase["share"] for phase in result["phases"]}
        parts = ["GEMM qkv", "GEMM o", "GEMM gate/up", "GEMM down", "GEMM logits", "to and from GPU", "S-Part rest"]
        self.assertAlmostEqual(sum(shares[part] for part in parts), shares["S-Part stage"], places=3)
        self.assertLess(shares["S-Part rest"], shares["S-Part stage"])
        self.assertEqual(check_trace.check(json.loads(files[1].read_text())), [])

    def test_a_narrow_terminal(self):
        for columns in (60, 80):
            text = self.succeed(step("--columns", columns))
            self.assertLessEqual(max(map(len, text.splitlines())), columns)

    def test_several_homes_and_micro_batches(self):
        result = json.loads(self.succeed(step("--homes", "local:2", "--micro-batches", 3, "--poll", "yield", "--json")))
        self.check_sums(result)
        self.assertEqual([home["home"] for home in result["homes"]], [0, 1])

    def test_interrupt_says_what_there_is(self):
        process = start("latency", "step", "-m", demo_model(), *SMALL, "--concurrency", 4, "--seconds", 100,
                        "--warmup-seconds", 0.1, "--json")
        self.await_recorded(process, process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, err)
        result = json.loads(out)
        self.check_sums(result)
        self.assertIn("interrupted: what this machine's memory can do was not measured", result["warnings"])
        self.assertNotIn("weights read, S-Part", [figure["what"] for figure in result["achieved"]])

    def test_bad_options(self):
        (SCRATCH / "a-folder.json").mkdir()
        for arguments, needles in [
            (["--save", "/none/x.json"], ("--save", "/none/x.json")), (["--save", SCRATCH / "a-folder.json"], ("--save",)),
            (["--save", "x.txt"], ("--save", "'x.txt'", ".html")), (["--slo", "ttft:10"], ("--slo", "ttft:10")),
            (["--slo", "speed:10ms,p50"], ("--slo", "speed")), (["--prompt-tokens", "9-3"], ("--prompt-tokens", "9-3")),
            (["--prompt-tokens", 100000], ("--prompt-tokens", "100000")), (["--rate", 5], ("--rate", "--concurrency")),
            (["--arrivals", "constant"], ("--arrivals", "--rate")),
            (["--slo", "ttft:10ms,p50", "--slo", "ttft:10ms,p50"], ("--slo", "twice")),
            (["--seconds", 0], ("--seconds", "0")), (["--format", "xml"], ("--format", "xml")),
            (["--format", "perftest"], ("--format", "perftest"))]:  # which latency fabric alone has
            with self.subTest(arguments=arguments):
                self.refused(step(*arguments), *needles)
        self.assertFalse(pathlib.Path("x.txt").exists())


class Attach(Recorded):
    def test_a_running_engine(self):
        with EngineAtWork(MANY) as engine:
            result = json.loads(self.succeed(run("latency", "attach", engine.pid, *self.RECORDING, "--json")))
            self.check_sums(result)
            self.assertEqual(result["engine"]["pid"], engine.pid)
            again = self.succeed(run("latency", "attach", engine.pid, *self.RECORDING))
            self.assertIn("THE MEAN TOKEN", again)

    def test_an_engine_that_ends_meanwhile(self):
        with EngineAtWork(MANY) as engine:
            attached = start("latency", "attach", engine.pid, "--seconds", 100)
            self.await_recorded(attached, engine.pid)
            engine.process.send_signal(signal.SIGINT)
            out, err = attached.communicate(timeout=LIMIT_S)
            self.assertEqual(attached.returncode, 0, err)
            self.assertIn("the engine ended before the recording did", " ".join(out.split()))

    def test_an_engine_that_stands_still(self):
        with EngineAtWork(MANY) as engine:
            attached = start("latency", "attach", engine.pid, "--seconds", 100, "--slo", "itl:1s,p50", "--slo", "itl:1000s,p50")
            self.await_recorded(attached, engine.pid)
            engine.process.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            attached.send_signal(signal.SIGINT)
            out, err = attached.communicate(timeout=LIMIT_S)
            engine.process.send_signal(signal.SIGCONT)
        self.assertEqual(attached.returncode, 2, err)
        words = " ".join(out.split())
        for found in (r"the whole engine stood still: it did nothing in the last ([\d.]+) s",
                      r"MISSED itl:1s,p50 [0-9.]+ [mu]?s, then nothing for ([\d.]+) s met itl:1000s,p50"):
            self.assertRegex(words, found)
            self.assertGreaterEqual(float(re.search(found, words)[1]), 2)

    def test_a_socket_of_its_own(self):
        path = SCRATCH / "record.sock"
        with EngineAtWork(MANY, "--record-socket", str(path)) as engine:
            self.check_sums(json.loads(self.succeed(run("latency", "attach", path, *self.RECORDING, "--json"))))
            self.refused(run("latency", "attach", engine.pid), str(engine.pid), "--record-socket")

    def test_what_is_no_engine(self):
        self.refused(run("latency", "attach", os.getpid()), f"process {os.getpid()} (python3)", "no engine")
        self.refused(run("latency", "attach", 999999999), "no process 999999999")
        self.refused(run("latency", "attach", "/none/x.sock"), "/none/x.sock")
        self.refused(run("latency", "attach"), "target")
        with cli_test.Worker("no-engine.sock") as worker:
            self.refused(run("latency", "attach", worker.process.pid), "(fastdecode)", "no engine", "is a worker",
                         "give the process id of an engine that it serves")
            self.refused(run("latency", "attach", worker.path), "no engine", "of a worker, give an engine")

    def test_what_else_the_program_does(self):
        with EngineAtWork(MANY) as engine:
            asking = start("latency", "attach", engine.pid, "--seconds", 100)
            await_sleeps(asking, 30)
            self.refused(run("latency", "attach", asking.pid), "'fastdecode latency attach'", "give the process that it asks")
            asking.kill()
            asking.communicate()
        hiccup = start("latency", "hiccup", "--seconds", 100)
        await_thread(hiccup, "fd-hiccup")
        self.refused(run("latency", "attach", hiccup.pid), "'fastdecode latency hiccup', which has no engine")
        hiccup.kill()
        hiccup.communicate()
        with socket.create_server(("127.0.0.1", 0)) as server:  # that says nothing
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            chat = subprocess.Popen([cli_test.PROGRAM, "chat", "--url", url], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            chat.stdin.write(b"a\n")
            chat.stdin.flush()
            server.accept()
            self.refused(run("latency", "attach", chat.pid), f"the server at {url}", "the server's process id")
            chat.kill()
            chat.communicate()

    def test_an_engine_that_nobody_may_record(self):
        path = SCRATCH / "named.sock"
        for arguments, needles in ((["--record-socket", "off"], ["--record-socket off"]),
                                   ([f"--record-socket={path}"], [f"--record-socket '{path}'", "give that path"])):
            with EngineAtWork(MANY, *arguments) as engine:
                self.refused(run("latency", "attach", engine.pid), *needles)
        self.refused(run("latency", "attach", path), path, "once the engine has loaded its model")

    def test_a_server_that_ends(self):
        process = subprocess.Popen([cli_test.PROGRAM, "serve", "-m", demo_model(), "--port", "0", "--access-log", "none", "--kv-gib",
                                    "0.02", "--fault", "delay=1:2ms", *PATIENT], stderr=subprocess.PIPE, text=True)
        url = next(match[1] for line in process.stderr if (match := re.search(r"ready on (http://\S+)", line)))
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        body = json.dumps({"model": "model", "prompt": "Once", "max_tokens": 500, "stream": True, "ignore_eos": True})
        request = urllib.request.Request(url + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as stream:
            stream.readline()
            process.terminate()
            result = json.loads(self.succeed(run("latency", "attach", process.pid, "--seconds", 1, "--json")))
            self.assertEqual(result["engine"]["pid"], process.pid)
            self.assertIn(b"[DONE]", stream.read())
        self.assertEqual(process.wait(LIMIT_S), 0)
        drain.join()
        process.stderr.close()

    def test_another_users_engine(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        with EngineAtWork(MANY) as engine:
            try:
                result = run("latency", "attach", engine.pid, user=65534, group=65534, extra_groups=[], cwd="/")
            except PermissionError:
                self.skipTest("nobody cannot run the program where it lies")
            self.refused(result, f"process {engine.pid} (fastdecode) belongs to another user", "root")

    def test_an_engine_in_a_container(self):
        for namespaces, kind in ((["--net"], "net"), (["--pid", "--fork"], "pid")):
            unshare = ["unshare", *namespaces, "--kill-child"] if "--fork" in namespaces else ["unshare", *namespaces]
            if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
                self.skipTest("no namespaces of its own")
            path = SCRATCH / f"container-{kind}.sock"
            prompts = [x for i in range(MANY) for x in ("-p", f"Anna {i}")]
            command = [*unshare, cli_test.PROGRAM, "generate", "-m", demo_model(), *SMALL, "-n", "450", "--ignore-eos", "--fault",
                       "delay=1:1ms", "--record-socket", str(path), *prompts]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.kill)
            process.stdout.read(10)
            threading.Thread(target=process.stdout.read).start()
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            pid = int(children[0]) if "--fork" in namespaces else process.pid
            self.refused(run("latency", "attach", pid), f"another {kind} namespace", "--record-socket PATH")
            result = json.loads(self.succeed(run("latency", "attach", path, *self.RECORDING, "--json")))
            self.assertEqual(result["engine"]["pid"], pid)  # as they are counted here
            process.kill()
            process.wait(LIMIT_S)


class Kernel(ProgramTest):
    SMALL_SHAPES = ["--gib", 0.02, "--context", 256, "--heads", 8, "--kv-heads", 2, "--head-size", 64, "--rows", "1,4",
                    "--inputs", 512, "--outputs", 1024, "--repetitions", 2, "--threads", 1]

    def test_both_parts_beside_what_the_machine_can_do(self):
        saved = SCRATCH / "kernel.json"
        self.measured("latency", "kernel", *self.SMALL_SHAPES, "--save", saved)
        result = json.loads(saved.read_text())
        names = [phase["name"] for phase in result["phases"]]
        self.assertTrue(names[0].startswith("attention"), names)
        self.assertIn("GEMM, 4 row(s)", names)
        self.assertEqual(len(set(names)), len(names), names)  # by which results are compared
        for phase in result["phases"][1:]:
            self.assertEqual(phase["name"].endswith(", oneDNN"), phase["note"].startswith("oneDNN"), phase)
        for figure in result["achieved"]:
            self.assertGreater(figure["achieved"], 0, figure)
            self.assertGreater(figure["possible"], 0, figure)

    def test_what_was_saved_before_stays_unless_the_new_is_whole(self):
        folder = SCRATCH / "nearly-full"
        folder.mkdir()
        saved, link = folder / "x.json", folder / "link.json"
        saved.write_text("before")
        saved.chmod(0o640)
        link.symlink_to("x.json")

        def nearly_full():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        result = self.tried("latency", "kernel", *self.SMALL_SHAPES, "--save", link, preexec_fn=nearly_full)
        self.assertIn(f"--save: {link}: cannot be written: File too large", result.stderr)
        self.assertEqual((result.returncode, saved.read_text(), len(list(folder.iterdir()))), (1, "before", 2))
        self.measured("latency", "kernel", *self.SMALL_SHAPES, "--save", link)
        self.assertEqual(json.loads(saved.read_text())["command"], "kernel")
        self.assertEqual((saved.stat().st_mode & 0o777, link.is_symlink(), len(list(folder.iterdir()))), (0o640, True, 2))

    def test_bad_options(self):
        self.refused(run("latency", "kernel", "--kv-type", "int3"), "--kv-type", "int3")
        self.refused(run("latency", "kernel", "--rows", "8,1,8"), "--rows: 8 is there twice")
        self.refused(run("latency", "kernel", "--save", "x.trace.json"), "--save", "no recording")
        # Before anything is measured, though the attention could be.
        self.refused(run("latency", "kernel", "--gib", 0.05, "--repetitions", 100000), "--gib: 0.0", "14336 x 4096")


class Delivery(ProgramTest):
    """Of what was measured to files and to stdout, by a command that no other work on the machine keeps from measuring."""

    @staticmethod
    def small_step(saved):
        return ["latency", "step", "-m", demo_model(), "-q", "--kv-gib", "0.05", "--concurrency", 2, "--prompt-tokens", 8,
                "--output-tokens", 8, "--warmup-seconds", 0.1, "--seconds", 100, "--max-events", LITTLE, *PATIENT,
                "--save", saved]

    def step_with_stdout(self, stdout, saved, **more):
        return subprocess.Popen([cli_test.PROGRAM, *map(str, self.small_step(saved)), "--json"], stdout=stdout,
                                stderr=subprocess.PIPE, text=True, **more)

    def test_files_are_there_whatever_becomes_of_stdout(self):
        with open("/dev/full", "w") as full:
            for name, stdout, code in [("gone", subprocess.PIPE, -signal.SIGPIPE), ("full", full, 1)]:
                saved = SCRATCH / f"{name}-stdout.json"
                with self.step_with_stdout(stdout, saved) as process:
                    if process.stdout:
                        process.stdout.close()
                    self.assertEqual(process.wait(LIMIT_S), code)
                    if code > 0:
                        self.assertIn("stdout: cannot be written: No space left", process.stderr.read())
                self.assertEqual(json.loads(saved.read_text())["command"], "step")

    def test_a_closed_stdout_is_nobody_elses_file(self):
        saved = SCRATCH / "closed-stdout.json"
        with self.step_with_stdout(None, saved, preexec_fn=lambda: os.close(1)) as process:
            self.assertIn("stdout: cannot be written", process.stderr.read())
            self.assertEqual(process.wait(LIMIT_S), 1)
        self.assertEqual(json.loads(saved.read_text())["command"], "step")

    def test_a_file_that_cannot_be_written_loses_no_other(self):
        full, also_full, saved = SCRATCH / "full.csv", SCRATCH / "full.prom", SCRATCH / "beside-full.json"
        for path in (full, also_full):
            path.symlink_to("/dev/full")
        result = run(*self.small_step(full), "--save", saved, "--save", also_full)
        self.assertEqual(result.returncode, 1)
        for path in (full, also_full):
            self.assertIn(f"--save: {path}: cannot be written: No space left", result.stderr)
        self.assertIn("S-Part stage", result.stdout)
        self.assertEqual(json.loads(saved.read_text())["command"], "step")


class Fabric(ProgramTest):
    def test_percentiles_that_are_no_more_than_the_longest_are_withheld(self):
        shown = ["latency", "fabric", "--rounds", 10, "--bytes-max", 8, "--format"]
        rows = json.loads(self.succeed(run(*shown, "json")))["rows"]
        self.assertEqual([row["shape"] for row in rows], ["one-way", "hop", "bulk"])
        for row in rows:
            self.assertLessEqual(row["min_us"], row["p50_us"])
            self.assertEqual([row[name] for name in ("p90_us", "p99_us", "p999_us")], [None, None, None])
        for line in self.succeed(run(*shown, "text")).splitlines()[-3:]:
            self.assertRegex(line, r"^\S+ +8 +\d+ +10 +[0-9.]+ +[0-9.]+ +- +- +- +[0-9.]+ +[0-9.]+$")

    def test_the_near_ends_options_are_none_of_the_far_end(self):
        for option in (["--rounds", 10], ["--bytes-max", 8], ["--format", "json"], ["--json"]):
            with self.subTest(option=option):
                self.refused(run("latency", "fabric", "--listen", f"unix:{SCRATCH / 'far'}", *option), option[0], "--listen")

    def test_the_whole_peer_is_named(self):
        folder = SCRATCH / ("long-name-of-a-folder-" * 3)
        folder.mkdir()
        far = start("latency", "fabric", "--listen", f"unix:{folder / 's'}")
        next(line for line in far.stderr if "listens on" in line)
        try:
            text = self.succeed(run("latency", "fabric", "--peer", f"unix:{folder / 's'}", "--rounds", 10, "--bytes-max", 8))
        finally:
            far.send_signal(signal.SIGINT)
            far.communicate(timeout=LIMIT_S)
        self.assertIn(f"{folder / 's'}", text.splitlines()[0])
        self.assertRegex(text.splitlines()[2], r"^bulk: a segment of a stream, by windows of \d+$")


class Hiccup(ProgramTest):
    CAUSES = {"other threads", "interrupt", "interrupt or hypervisor", "hypervisor or firmware", "not known"}

    def test_json_hangs_together(self):
        result = json.loads(self.succeed(run("latency", "hiccup", "--seconds", 1, "--threshold", "3us", "--worst", 5,
                                             "--json")))
        self.assertEqual(result["threshold_ns"], 3000)
        self.assertIn("model", result["provenance"]["cpu"])
        allowed = os.sched_getaffinity(0)
        self.assertGreater(len(result["cores"]), 0)
        for core in result["cores"]:
            self.assertIn(core["core"], allowed)
            self.assertTrue(core["pinned"])
            self.assertAlmostEqual(core["elapsed_ns"], 1e9, delta=1e9)  # others may have the core at its end
            self.assertGreaterEqual(core["elapsed_ns"], 0.99e9)
            self.assertEqual(set(core["causes"]), self.CAUSES)
            self.assertEqual(sum(cause["hiccups"] for cause in core["causes"].values()), core["hiccups"])
            self.assertAlmostEqual(sum(cause["ns"] for cause in core["causes"].values()), core["lost_ns"],
                                   delta=core["hiccups"] + 1)
            self.assertAlmostEqual(core["lost_share"], core["lost_ns"] / core["elapsed_ns"], places=6)
            self.assertLessEqual(core["wait_ns"]["p99"], core["wait_ns"]["p99.99"])
            self.assertTrue(core["smis"] is not None or core["smi_note"])
        lengths = [hiccup["length_ns"] for hiccup in result["longest"]]
        self.assertLessEqual(len(lengths), 5)
        self.assertEqual(lengths, sorted(lengths, reverse=True))

    def test_a_thief_of_the_core_is_named(self):
        core = max(os.sched_getaffinity(0))
        steal = f"import os; os.sched_setaffinity(0, [{core}]); print('there', flush=True)\nwhile True: pass"
        thief = subprocess.Popen([sys.executable, "-c", steal], stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(thief.stdout.readline(), "there\n")
            result = json.loads(self.succeed(run("latency", "hiccup", "--cores", core, "--seconds", 2, "--json")))
        finally:
            thief.kill()
            thief.communicate()
        stolen = result["cores"][0]["causes"]["other threads"]
        self.assertGreater(stolen["ns"], 0.2e9)
        self.assertGreater(result["cores"][0]["preemptions"], 0)

    def test_text(self):
        for columns in (60, 100):
            text = self.succeed(run("latency", "hiccup", "--seconds", 0.2, "--columns", columns))
            self.assertLessEqual(max(map(len, text.splitlines())), columns)
            for needle in ("processor", "hiccups of more than 2.00 us", "WHAT THE KERNEL COUNTED", "SMI count"):
                self.assertIn(needle, " ".join(text.split()))

    def test_interrupt_says_what_there_is(self):
        process = start("latency", "hiccup", "--seconds", 1000, "--json")
        await_thread(process, "fd-hiccup")  # which measures: Ctrl-C is only noted by then
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(json.loads(out)["cores"][0]["elapsed_ns"], 900e9)

    def test_bad_options(self):
        for arguments, needles in [
            (["--threshold", "2"], ("--threshold", "'2'", "2us")), (["--threshold", "10ns"], ("--threshold", "'10ns'")),
            (["--cores", "99999"], ("--cores", "99999")), (["--cores", "x"], ("--cores", "x")),
            (["--seconds", 0], ("--seconds", "0"))]:
            with self.subTest(arguments=arguments):
                self.refused(run("latency", "hiccup", *arguments), *needles)


class Clock(ProgramTest):
    def test_json(self):
        result = json.loads(self.succeed(run("latency", "clock", "--seconds", 0.5, "--json")))
        self.assertGreater(result["ticks_per_second"], 1e6)
        for name in ("now_ticks", "now_ns"):
            self.assertGreater(result[name]["call_ns"], 0)
            self.assertGreater(result[name]["step_ns"], 0)
        cores = len({core for offset in result["offsets"] for core in (offset["from"], offset["to"])})
        self.assertEqual(len(result["offsets"]), cores * (cores - 1) // 2)
        for offset in result["offsets"]:
            self.assertGreater(offset["rounds"], 0)
            self.assertEqual(offset["differ"], abs(offset["offset_ns"]) > offset["bound_ns"])

    def test_text(self):
        text = self.succeed(run("latency", "clock", "--seconds", 0.1, "--columns", 60))
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        for needle in ("CLOCK", "Hz", "NowTicks", "VERDICT"):
            self.assertIn(needle, text)

    def test_bad_options(self):
        self.refused(run("latency", "clock", "--cores", "99999"), "--cores", "99999")
        self.refused(run("latency", "clock", "--seconds", "-1"), "--seconds", "-1")


class Compare(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.saved = SCRATCH / "before.json"
        result = step("--max-events", 5 * SOME, "--save", cls.saved)
        assert result.returncode == 0, result.stderr

    def changed(self, name, change):
        """The same result, after `change` had its way with its JSON."""
        result = json.loads(self.saved.read_text())
        change(result)
        path = SCRATCH / name
        path.write_text(json.dumps(result))
        return path

    # Tokens take so many times as long. How certain that is was made up, a hundredth of each statistic: a short run on a
    # busy machine knows little, and its mean may be many times its median.
    def tokens_times(self, factor):
        def longer(value, is_time):
            if isinstance(value, dict):
                return {key: longer(inner, is_time or key.endswith("_ns")) for key, inner in value.items()}
            if isinstance(value, list):
                return [longer(inner, is_time) for inner in value]
            return value if value is None or not is_time else type(value)(value * factor)

        def change(result):
            for phase in result["phases"]:
                if phase["name"] == "token":
                    distribution = phase["distribution"] = longer(phase["distribution"], False)
                    for statistic, uncertainty in distribution["uncertainty"].items():
                        withheld = distribution["mean_ns"]
                        uncertainty.update(error_ns=0.01 * (distribution[f"{statistic}_ns"] or withheld), freedom=15)

        return change

    def test_nothing_changed(self):
        same = self.changed("same.json", self.tokens_times(1))
        text = self.succeed(run("latency", "compare", same, same))
        for needle in ("B is not slower than A by more than 5.0 %", "token", "no difference seen", str(same)):
            self.assertIn(needle, text)

    def test_nearly_twice_as_much_is_slower_and_the_exit_code_says_so(self):
        before = self.changed("certain.json", self.tokens_times(1))
        slow = self.changed("slow.json", self.tokens_times(1.9))
        result = run("latency", "compare", before, slow, "--columns", 60)
        self.assertEqual((result.returncode, result.stderr), (2, ""))
        self.assertIn("B IS SLOWER than A: token", result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), max(60, len(str(slow)) + 5))
        rows = json.loads(run("latency", "compare", before, slow, "--json").stdout)["rows"]
        for row in rows:
            if row["metric"] == "token" and row["statistic"] in ("p50", "mean"):
                self.assertAlmostEqual(row["change"], 0.9, places=2)
                self.assertEqual(row["verdict"], "slower")
        # Not beyond another threshold, and the other way round it is faster.
        self.succeed(run("latency", "compare", before, slow, "--threshold", "95%"))
        self.assertIn("faster", self.succeed(run("latency", "compare", slow, before)))

    def test_too_few_samples_are_no_verdict(self):
        def unknown(result):
            felt = [phase["distribution"] for phase in result["phases"] if phase["name"] in ("token", "step")]
            for distribution in felt + [requests[of] for requests in result["requests"] for of in ("ttft", "tpot", "itl", "e2e")]:
                for uncertainty in distribution["uncertainty"].values():
                    uncertainty.update(freedom=0)

        few = self.changed("few.json", unknown)
        result = run("latency", "compare", self.saved, few)
        self.assertEqual((result.returncode, result.stderr), (2, ""))
        self.assertIn("NOTHING COULD BE JUDGED", result.stdout)
        self.assertIsNone(json.loads(run("latency", "compare", self.saved, few, "--json").stdout)["slower"])
        self.succeed(run("latency", "compare", self.saved, few, "--phases-count"))

    def test_bad_files(self):
        no_json = SCRATCH / "no.json"
        no_json.write_text('{"schema_version": 1,,}')
        other = self.changed("other.json", lambda result: result.update(schema_version=99))
        damaged = self.changed("damaged.json", lambda result: result.update(phases=[{"name": 7}]))
        empty = self.changed("empty.json", lambda result: result.update(phases=[], requests=[]))
        huge, pipe = SCRATCH / "huge.json", SCRATCH / "pipe.json"
        with open(huge, "w") as file:
            file.truncate(1 << 30)
        os.mkfifo(pipe)
        for bad, needles in [("/dev/zero", ("/dev/zero", "not a regular file")), (pipe, ("pipe.json", "not a regular file")),
                             (huge, ("huge.json", str(1 << 30), str(1 << 28))),
                             (SCRATCH / "none.json", ("none.json", "No such file")), (no_json, ("no.json", "line 1")),
                             (other, ("other.json", "99")), (damaged, ("damaged.json", "phases[0]")),
                             (SCRATCH, (str(SCRATCH),)), (empty, ("empty.json", "in common"))]:
            with self.subTest(bad=bad):
                self.refused(run("latency", "compare", self.saved, bad), *needles)
                self.refused(run("latency", "compare", bad, self.saved), *needles)

    def test_bad_options(self):
        self.refused(run("latency", "compare", self.saved, self.saved, "--threshold", "0.05"), "--threshold", "'0.05'", "5%")
        self.refused(run("latency", "compare", self.saved, self.saved, "--resamples", 1), "--resamples", "1")
        self.refused(run("latency", "compare", self.saved), "B")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cli_test.PROGRAM, cli_test.ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
