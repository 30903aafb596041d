#!/usr/bin/env python3
"""The program and the library start on hosts without RDMA and without CUDA, and say so where these are asked for.

usage: libraries_test.py PROGRAM LIBRARY_OR_NOTHING [unittest arguments]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FILES = [pathlib.Path(file) for file in (sys.argv.pop(1), sys.argv.pop(1)) if file]
PROGRAM = FILES[0]
LIMIT_S = 120
# Loaded on demand, or by the GPU module alone.
NOT_NEEDED = re.compile(r"lib(ibverbs|rdmacm|mlx\w*|cuda|cudart|cublas|cublasLt|nvidia[\w-]*)\.so")
MISSING = "libibverbs.so.1 could not be loaded: "
ADVICE = "install libibverbs1 and ibverbs-providers"


class Libraries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fd-libraries-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # The loader takes the first of a name, and this is none.
        (self.folder / "libibverbs.so.1").touch()
        self.secret = self.folder / "secret"
        self.secret.write_text("0123456789abcdef0123456789abcdef0123456789ab\n")
        self.secret.chmod(0o600)

    def run_without_verbs(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, "LD_LIBRARY_PATH": str(self.folder)})

    def test_neither_rdma_nor_cuda_is_needed(self):
        for file in FILES:
            listing = subprocess.run(["readelf", "-dW", file], check=True, capture_output=True, text=True).stdout
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
            self.assertIn("libc.so.6", needed)
            self.assertEqual([name for name in needed if NOT_NEEDED.match(name)], [], file)

    def test_it_starts_without_libibverbs(self):
        result = self.run_without_verbs("--version")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_worker_says_what_it_lacks(self):
        result = self.run_without_verbs("worker", "--listen", "127.0.0.1:7471", "--secret-file", self.secret,
                                        "--kv-gib", "0.01")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(MISSING, result.stderr)
        self.assertIn(ADVICE, result.stderr)

    def test_an_engine_says_what_it_lacks_before_it_waits_for_a_worker(self):
        model = pathlib.Path(__file__).resolve().parents[2] / "tools/demo_model/model"
        result = self.run_without_verbs("generate", "--model", model, "--homes", "127.0.0.1:9",
                                        "--secret-file", self.secret, "--kv-gib", "0.01", "-p", "x")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(MISSING, result.stderr)
        self.assertIn(ADVICE, result.stderr)

    def test_doctor_says_it_too(self):
        result = self.run_without_verbs("doctor", "--json")
        checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
        self.assertEqual(checks["user verbs"]["status"], "error")
        self.assertIn(MISSING, checks["user verbs"]["found"])
        self.assertEqual(checks["user verbs"]["advice"], ADVICE)


if __name__ == "__main__":
    unittest.main()
