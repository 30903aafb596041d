"""Starts `fastdecode serve` with the demo model for tests, and asks `fastdecode generate` about the same model.

Both compute with --batch-invariant, so that the same request has the same floats however many others run beside it.
"""
import array
import atexit
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROGRAM = ""
ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "tools/demo_model/model"
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="fd-clients-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", 120))
# Threads that yield to others on their cores may stand still for seconds: no home is lost by that.
ENGINE = ["--batch-invariant", "--hop-timeout-ms", "60000", "--gpu-wait-ms", "120000", "-q"]


def run_under(folder, *packages):
    """Goes on under the Python of build/`folder`, which has these packages; where it cannot, says so and exits with 77."""
    try:
        for package in packages:
            __import__(package)
    except ImportError as error:
        python = ROOT / "build" / folder / "bin" / "python3"
        if python.exists() and pathlib.Path(sys.prefix).resolve() != python.parents[1].resolve():
            os.execv(python, [python, *sys.argv])
        print(f"skipped: {error} (tools/setup --{folder} installs what is needed)")
        sys.exit(77)


def eventually(what, seconds=LIMIT_S):
    """Waits until what() is true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.02)


def as_float(number):
    """The 32-bit float that a decimal number stands for."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


# ---------------------------------------------------------------------------------------------- fastdecode generate


def generate(*arguments):
    """The JSON objects of `fastdecode generate`, one a prompt."""
    command = [PROGRAM, "generate", "--model", str(MODEL), "--kv-gib", "0.02", "--max-sequences", "8", "--json", *ENGINE,
               *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def prompt_logits(ids):
    """A prompt's logits: a row of floats for each of its tokens."""
    path = SCRATCH / "logits.npy"
    generate("--prompt-ids", ",".join(map(str, ids)), "--logits", path, "-n", 1)
    data = path.read_bytes()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    rows, columns = map(int, re.search(rb"'shape': \((\d+), (\d+)\)", data[:start]).groups())
    floats = array.array("f", data[start:])
    if rows != len(ids) or len(floats) != rows * columns:
        raise AssertionError(f"{path}: {rows} x {columns}, {len(floats)} floats, for {len(ids)} tokens")
    return [floats[i * columns:(i + 1) * columns] for i in range(rows)]


class PromptLogprobs:
    """What the logits of a prompt say of its tokens, in double precision."""

    def __init__(self, ids):
        self.ids = ids
        self.rows = prompt_logits(ids)
        self.totals = []  # ln of the sum of e^logit
        for row in self.rows:
            top = max(row)
            self.totals.append(top + math.log(math.fsum(math.exp(x - top) for x in row)))

    def of_token(self, position):
        """The log-probability of the token at `position`, which is not the first."""
        return self.rows[position - 1][self.ids[position]] - self.totals[position - 1]

    def best(self, position):
        """The largest log-probability at `position`."""
        return max(self.rows[position - 1]) - self.totals[position - 1]

    def is_greedy(self, position):
        return self.rows[position - 1][self.ids[position]] == max(self.rows[position - 1])

    def tolerance(self, position):
        """How far the server's may be off.

        It adds up weights e^t whose relative error is below 1e-6 (kernels/sampling_math.h). Each t is rounded to a float,
        which changes the sum by 2^-24 of the mean of |t|; that mean is at most ln(1024) = 7 for this vocabulary, so this
        is less than another 1e-6. The result is rounded to a float.
        """
        return 2e-6 + abs(self.of_token(position)) * 2**-24


# --------------------------------------------------------------------------------------------------------- the server


def as_user_with_default_signals():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class DemoServer:
    """A running server: its address is `url`. A context, at whose end it must end well."""

    def __init__(self, *arguments, sequences=32, kv_gib=0.05):
        handle, name = tempfile.mkstemp(dir=SCRATCH, prefix="access-")
        self.access_path = pathlib.Path(name)
        command = [PROGRAM, "serve", "--model", str(MODEL), "--port", "0", "--max-sequences", str(sequences), "--kv-gib",
                   str(kv_gib), *ENGINE, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=handle, stderr=subprocess.PIPE,
                                        preexec_fn=as_user_with_default_signals)
        os.close(handle)
        self.lines = []
        self.url = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if not self.ready.wait(LIMIT_S) or self.url is None:
            self.kill()
            raise AssertionError("the server is not ready:\n" + self.log())
        self.port = int(self.url.rsplit(":", 1)[1])

    def read_log(self):
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            if match := re.search(r"ready on (http://\S+?)/?$", line):
                self.url = match.group(1)
                self.ready.set()
        self.process.stderr.close()
        self.ready.set()

    def log(self):
        return "\n".join(self.lines)

    def ask(self, path, body=None, headers=None):
        """(status, headers, body) of a GET, or of a POST of JSON."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path, body=None, headers=None):
        status, _, answer = self.ask(path, body, headers)
        if status != 200:
            raise AssertionError(f"{path}: {status} {answer}")
        return json.loads(answer)

    def tokenize(self, text, special=True):
        return self.json("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def detokenize(self, ids):
        return self.json("/detokenize", {"tokens": ids})["prompt"]

    def metrics(self, headers=None):
        """{name: [(labels, value)]}"""
        status, _, body = self.ask("/metrics", headers=headers)
        if status != 200:
            raise AssertionError(f"/metrics: {status} {body}")
        families = {}
        for line in body.decode().splitlines():
            if match := re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line):
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
                families.setdefault(match.group(1), []).append((labels, float(match.group(3))))
        return families

    def metric(self, name, headers=None, **labels):
        """The sum of a metric's samples that have these labels."""
        samples = self.metrics(headers).get(name)
        if samples is None:
            raise AssertionError(f"there is no metric {name}")
        return sum(value for have, value in samples if labels.items() <= have.items())

    def idle(self, headers=None):
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

    def access_lines(self):
        return [json.loads(line) for line in self.access_path.read_text().splitlines()]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(LIMIT_S)

    def stop(self):
        """Ends it as an operator does; a sanitizer's report or a crash is an error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        self.reader.join(LIMIT_S)
        if code != 0:
            raise AssertionError(f"the server ended with {code}:\n" + self.log()[-4000:])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()
