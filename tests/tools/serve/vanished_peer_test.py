#!/usr/bin/env python3
"""A client's host that vanishes without a word: its stream, and its request that waits silently, are cancelled within a minute.

usage: vanished_peer_test.py STUB_SERVER. Two network namespaces stand for the hosts; exits with 77 where they cannot be made.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60
SERVER, CLIENT = f"fd{os.getpid()}s", f"fd{os.getpid()}c"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def hosts():
    for name in SERVER, CLIENT:
        ip("netns", "add", name)
    ip("link", "add", "v0", "netns", SERVER, "type", "veth", "peer", "name", "v0", "netns", CLIENT)
    for name, address in (SERVER, "10.99.0.1/24"), (CLIENT, "10.99.0.2/24"):
        ip("-n", name, "addr", "add", address, "dev", "v0")
        ip("-n", name, "link", "set", "v0", "up")


def ask(prompt, stream):
    body = {"prompt": prompt, "max_tokens": 2000, "stream": stream}
    return subprocess.Popen(["ip", "netns", "exec", CLIENT, sys.executable, "-c", """if True:
        import sys, urllib.request
        with urllib.request.urlopen("http://10.99.0.1:8000/v1/completions", sys.argv[1].encode()) as answer:
            for line in answer:
                print("got", flush=True)""", json.dumps(body)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def cancelled(log):
    with open(log) as lines:
        return [record for record in map(json.loads, lines) if record.get("ended_by") == "client"]


def main():
    try:
        hosts()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: network namespaces cannot be made here: {error}")
        sys.exit(77)
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "access.log")
        server = subprocess.Popen(["ip", "netns", "exec", SERVER, sys.argv[1], "serve", "-m", folder, "--host", "10.99.0.1", "--access-log", log,
                                   "--grace-s", "0"], stderr=subprocess.PIPE, text=True)
        processes.append(server)
        assert any(re.search(r"ready on ", line) for line in server.stderr), "the server did not start"
        waiting = ask("{queue:600000} a", stream=False)
        streaming = ask("{ms:100} a" * 1500, stream=True)
        processes += [waiting, streaming]
        assert streaming.stdout.readline() == "got\n", "the stream did not begin"
        time.sleep(1)
        assert cancelled(log) == []
        ip("-n", CLIENT, "link", "set", "v0", "down")
        end = time.monotonic() + LIMIT_S
        while len(cancelled(log)) < 2:
            assert time.monotonic() < end, f"after {LIMIT_S} s these had been cancelled: {cancelled(log)}"
            time.sleep(0.5)
        tokens = sorted(record["generated_tokens"] for record in cancelled(log))
        assert tokens[0] == 0 and 0 < tokens[1] < 1500, tokens
        for process in processes:
            process.terminate()
        assert server.wait(30) == 0


if __name__ == "__main__":
    try:
        main()
    finally:
        for name in SERVER, CLIENT:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
