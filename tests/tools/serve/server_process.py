"""A server of these tests as a process: its start, its log, what it uses, its end."""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time

# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", 120))


def eventually(what, seconds=LIMIT_S):
    """Waits until what() is true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


def as_user_with_default_signals():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def metric_families(text):
    """A page of metrics: {name: [(labels, value)]}"""
    families = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if match is None:
            raise AssertionError(f"not a line of metrics: {line}")
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
        families.setdefault(match.group(1), []).append((labels, float(match.group(3))))
    return families


class ServerProcess:
    """A running server. `url` is what its log says that it is ready on. A context, at whose end it must end well."""

    def __init__(self, command, scratch, wait=True):
        handle, name = tempfile.mkstemp(dir=scratch, prefix="access-")
        self.access_path = pathlib.Path(name)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=handle, stderr=subprocess.PIPE,
                                        preexec_fn=as_user_with_default_signals)
        os.close(handle)
        self.lines = []
        self.url = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if wait and (not self.ready.wait(LIMIT_S) or self.url is None):
            self.kill()
            raise AssertionError("the server is not ready:\n" + self.log())

    def read_log(self):
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            if match := re.search(r"ready on (\S+?)/?$", line):
                self.url = self.url or match.group(1)
                self.ready.set()
        self.process.stderr.close()
        self.ready.set()

    def log(self):
        return "\n".join(self.lines)

    def access_lines(self):
        whole = self.access_path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.split("\n") if line]

    def metric(self, name, headers=(), **labels):
        """The sum of a metric's samples that have these labels."""
        samples = self.metrics(headers).get(name)
        if samples is None:
            raise AssertionError(f"there is no metric {name}")
        return sum(value for have, value in samples if labels.items() <= have.items())

    def idle(self, headers=()):
        """Waits until the engine has no request: whether it has come to that."""
        def is_idle():
            have = self.metrics(headers)
            gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "fastdecode_waiting_requests")
            return all(value == 0 for name in gauges for _, value in have[name])
        return eventually(is_idle)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def memory_bytes(self):
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        code = self.process.wait(LIMIT_S)
        self.reader.join(LIMIT_S)
        return code

    def kill(self):
        if self.alive():
            self.process.kill()
        self.process.wait()
        self.reader.join(LIMIT_S)

    def end(self):
        """Tells it to end."""
        self.signal(signal.SIGTERM)

    def stop(self):
        """Ends it as an operator does; a sanitizer's report or a crash is an error."""
        if self.alive():
            self.end()
        code = self.wait()
        if code != 0:
            raise AssertionError(f"the server ended with {code}:\n" + self.log()[-4000:])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()
