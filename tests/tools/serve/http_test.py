#!/usr/bin/env python3
"""The HTTP server against a stub engine, over raw sockets. "Bug class N" in a test's name or comment numbers what other
servers had wrong.

usage: http_test.py PROGRAM [CASES...] [unittest arguments]; CASES: endpoints, completions, streams, chat,
chat_streams, cancels, refusals, parsing, operators, life.
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import serve_harness  # noqa: E402

ALL = ["endpoints", "completions", "streams", "chat", "chat_streams", "cancels", "refusals", "parsing", "operators", "life"]


def main():
    serve_harness.PROGRAM = sys.argv[1]
    rest = sys.argv[2:]
    names = [name for name in rest if name in ALL] or ALL
    arguments = [argument for argument in rest if argument not in ALL]
    module = sys.modules[__name__]
    for name in names:
        cases = __import__(f"http_{name}_cases")
        for key, value in vars(cases).items():
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                setattr(module, key, value)
    unittest.main(module=module, argv=[sys.argv[0], "-v", *arguments])


if __name__ == "__main__":
    main()
