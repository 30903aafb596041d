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
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from server_process import LIMIT_S, ServerProcess, eventually, metric_families  # noqa: E402

PROGRAM = ""
ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "tools/demo_model/model"
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="fd-clients-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

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


class DemoServer(ServerProcess):
    """A running server with the demo model."""

    def __init__(self, *arguments, sequences=32, kv_gib=0.05):
        super().__init__([PROGRAM, "serve", "--model", str(MODEL), "--port", "0", "--max-sequences", str(sequences), "--kv-gib",
                          str(kv_gib), *ENGINE, *map(str, arguments)], SCRATCH)
        self.port = int(self.url.rsplit(":", 1)[1])

    def ask(self, path, body=None, headers=()):
        """(status, headers, body) of a GET, or of a POST of JSON."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path, body=None, headers=()):
        status, _, answer = self.ask(path, body, headers)
        if status != 200:
            raise AssertionError(f"{path}: {status} {answer}")
        return json.loads(answer)

    def tokenize(self, text, special=True):
        return self.json("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def detokenize(self, ids):
        return self.json("/detokenize", {"tokens": ids})["prompt"]

    def metrics(self, headers=()):
        """{name: [(labels, value)]}"""
        status, _, body = self.ask("/metrics", headers=headers)
        if status != 200:
            raise AssertionError(f"/metrics: {status} {body}")
        return metric_families(body.decode())
