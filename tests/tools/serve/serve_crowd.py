#!/usr/bin/env python3
"""What a crowd of clients costs others.

usage: serve_crowd.py PROGRAM MODEL waiting [--streams 2000] [-- FLAGS...]
           One stream runs while so many others wait in the queue: its tokens/s with and without them, and the server's memory for each.
       serve_crowd.py PROGRAM MODEL tokenizing [--connections 200] [-- FLAGS...]
           32 sequences decode while so many connections tokenize without a pause: tokens/s and the homes' time a hop, with and without.
"""
import argparse
import asyncio
import json
import re
import resource
import sys
import time
import urllib.request

import serve_speed


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def request(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def completion(tokens, prompt_tokens):
    return request("/v1/completions", {"prompt": list(range(10, 10 + prompt_tokens)), "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                                       "stream": True})


async def count_events(reader, seconds):
    """Events of a stream in so many seconds."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            line = await asyncio.wait_for(reader.readline(), end - time.monotonic())
        except asyncio.TimeoutError:
            break
        count += line.startswith(b"data: {")
    return count / seconds


async def waiting(server, args):
    reader, writer = await connect(server.url)
    writer.write(completion(1900, 20))
    await reader.readuntil(b"data: ")
    alone = await count_events(reader, args.seconds)
    before = resident_kib(server.process.pid)
    others = [await connect(server.url) for _ in range(args.streams)]
    for _, other in others:
        other.write(completion(16, 20))
    while server.metric("vllm:num_requests_waiting") < args.streams:
        await asyncio.sleep(0.2)
    memory = (resident_kib(server.process.pid) - before) / args.streams
    crowded = await count_events(reader, args.seconds)
    again = resident_kib(server.process.pid)
    for _, other in others:
        other.close()
    print(f"one stream: {alone:.2f} tokens/s alone, {crowded:.2f} beside {args.streams} that wait: ratio {crowded / alone:.3f}; "
          f"{memory:.1f} KiB for each that waits ({(again - before) / args.streams:.1f} after {args.seconds} s)")


async def tokenize_for_ever(server, text):
    reader, writer = await connect(server.url)
    while True:
        writer.write(request("/tokenize", {"prompt": text}))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head).group(1)))


async def tokenizing(server, args):
    def home():
        with urllib.request.urlopen(server.url + "/metrics") as page:
            text = page.read().decode()
        def total(name):
            return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M))
        return total("fastdecode_home_work_seconds_total"), total("fastdecode_home_hops_total"), total("vllm:generation_tokens_total")

    streams = [await connect(server.url) for _ in range(32)]
    for _, writer in streams:
        writer.write(completion(args.tokens, 20))

    async def drain(reader):
        while await reader.read(1 << 16):
            pass
    readers = [asyncio.create_task(drain(reader)) for reader, _ in streams]
    await asyncio.sleep(args.seconds / 2)

    async def window():
        work, hops, tokens = home()
        await asyncio.sleep(args.seconds)
        work2, hops2, tokens2 = await asyncio.to_thread(home)
        return (work2 - work) / (hops2 - hops), (tokens2 - tokens) / args.seconds

    text = "Once upon a time there was a girl named Anna. " * 20
    for _ in range(args.pairs):
        quiet = await window()
        crowd = [asyncio.create_task(tokenize_for_ever(server, text)) for _ in range(args.connections)]
        await asyncio.sleep(0.5)
        busy = await window()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        print(f"32 sequences: home {quiet[0] * 1e6:.1f} us a hop and {quiet[1]:.1f} tokens/s alone, {busy[0] * 1e6:.1f} us and {busy[1]:.1f} tokens/s "
              f"beside {args.connections} that tokenize: time a hop x {busy[0] / quiet[0]:.3f}, tokens/s x {busy[1] / quiet[1]:.3f}", flush=True)
    for task in readers:
        task.cancel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("what", choices=["waiting", "tokenizing"])
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=1900)
    parser.add_argument("--pairs", type=int, default=3)
    argv = sys.argv[1:]
    split = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:split])
    flags = argv[split + 1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if args.what == "waiting":
        flags += ["--max-sequences", "1"]
    server = serve_speed.Server(args.program, args.model, flags + ["--grace-s", "0"])
    try:
        asyncio.run(waiting(server, args) if args.what == "waiting" else tokenizing(server, args))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
