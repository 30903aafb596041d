#!/usr/bin/env python3
"""Broken requests, many and at once: none may end the server, keep a descriptor, or get an error of the server's own.

usage: malformed_test.py PROGRAM COUNT [SEED]. The same seed makes the same requests.
"""
import pathlib
import random
import select
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import serve_harness as harness  # noqa: E402

CONNECTIONS = 48
# The server's own errors that have a cause: what it does not implement, too much at once, a version it does not speak.
ALLOWED_5XX = {501, 503, 505}
QUIET_S = 0.5
SPLICES = [b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\x00", b":", b" ", b"\t", b"0\r\n\r\n", b"-1", b"ffffffffffffffff", b"%00", b"\xff\xfe",
           b"\xed\xa0\x80", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Length: 99999999999\r\n",
           b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/2.0", b"HEAD", b"OPTIONS", b"{", b"}", b"[" * 200, b'"',
           b"\\", b"\\ud800", b"\\u0000", b"null", b"NaN", b"1e999", b"-0", b"9" * 400, b'"n":1000000000,', b'"stream":true,', b'"logprobs":20,',
           b'"max_tokens":0,', b'"stop":["a"],', b'"echo":true,', b'"role":"user",', b'"content":[{"type":"text"}],', b'"tools":[{}],', b";x=y", b"GET / HTTP/1.1\r\n\r\n", b"A" * 3000]


def chunked(body, random_):
    out = b""
    while body:
        size = random_.randint(1, max(1, len(body)))
        out += b"%x\r\n%s\r\n" % (size, body[:size])
        body = body[size:]
    return out + b"0\r\n\r\n"


def valid_requests(random_):
    """What mutations start from: short answers, so that there is nothing to wait for."""
    fields = [{}, {"stream": True}, {"n": 3, "seed": 1}, {"echo": True, "logprobs": 2}, {"stop": ["b", "c d"], "temperature": 0.5},
              {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 1}, {"logit_bias": {"97": 5}, "top_k": 3}]
    prompts = ["a b c", ["a", "b"], [97, 98, 99], [[97], [98, 99]], "a{bytes:e2} b", "\u00e9 \u2028 \U0001F600", "{error:x}"]
    all_ = [harness.request("GET", path) for path in ("/v1/models", "/v1/models/tiny-model", "/health", "/ready", "/metrics", "/version",
                                                      "/tokenizer_info", "/nowhere?x=%41")]
    all_ += [harness.request("POST", "/tokenize", {"prompt": "a b", "return_token_strs": True}),
             harness.request("POST", "/detokenize", {"tokens": [97, 98]}),
             harness.request("OPTIONS", "/v1/completions", headers={"Origin": "https://a.example",
                                                                    "Access-Control-Request-Method": "POST"})]
    all_ += [harness.completion(prompt, **{"max_tokens": 8, **more}) for prompt in prompts for more in fields]
    chats = ["a b c", "<think>a</think> b{bytes:e2}", "{error:x}", "{template-error:x}",
             [{"role": "system", "content": "\u00e9 \u2028"}, {"role": "user", "content": [{"type": "text", "text": "a b"}]}],
             [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]]
    fields = [{}, {"stream": True}, {"n": 3, "seed": 1}, {"logprobs": True, "top_logprobs": 2}, {"include_reasoning": False},
              {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "return_token_ids": True},
              {"tools": [{"type": "function"}], "tool_choice": "none", "chat_template_kwargs": {"thinks": True}, "reasoning_effort": "low"},
              {"add_generation_prompt": False, "continue_final_message": True, "documents": [{"title": "t"}]}]
    all_ += [harness.chat(messages, **{"max_completion_tokens": 8, **more}) for messages in chats for more in fields]
    all_.append(harness.request("POST", "/tokenize", harness.chat_body("a b", tools=[{"type": "function"}])))
    for data in random_.sample([data for data in all_ if data.startswith(b"POST")], 40):
        head, body = data.split(b"\r\n\r\n", 1)
        all_.append(head.split(b"\r\n")[0] + b"\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, random_))
    return all_


def mutate(data, random_):
    data = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 8))):
        at = random_.randrange(len(data) + 1)
        kind = random_.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = random_.randrange(256)
        elif kind == 2:
            del data[at:at + random_.randint(1, 20)]
        elif kind == 3:
            data[at:at] = random_.choice(SPLICES)
        elif kind == 4:
            data[at:at] = data[random_.randrange(len(data) + 1):][:random_.randint(1, 60)]
        elif kind == 5:  # another length
            digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                data[random_.choice(digits)] = 48 + random_.randrange(10)
        else:
            data = data[:at]
        if not data:
            data = bytearray(b"G")
    return bytes(data)


class Abuser:
    """One connection after another, each with some requests in one piece or two."""

    def __init__(self, address, requests, random_, count, statuses):
        self.address, self.requests, self.random, self.statuses = address, requests, random_, statuses
        self.left = count
        self.socket = None
        self.open()

    def open(self):
        self.received = bytearray()
        self.seen_answers = 0
        count = min(self.left, self.random.choice((1, 1, 2, 5, 20)))
        self.left -= count
        self.sent = [mutate(self.random.choice(self.requests), self.random) for _ in range(count)]
        self.to_send = b"".join(self.sent)
        self.last = time.monotonic()
        self.socket = socket.create_connection(("127.0.0.1", self.address))
        self.socket.setblocking(False)
        self.reset = self.random.random() < 0.2
        self.shut = False

    def close(self):
        if self.reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()
        self.socket = None
        for line in self.received.split(b"HTTP/1.")[1:]:
            code = line[2:5]
            if line[1:2] == b" " and code.isdigit():
                self.check(int(code), line)

    def check(self, status, line):
        self.statuses[status] = self.statuses.get(status, 0) + 1
        # The error that a prompt scripts is the engine's, and so its cause; chunks may cut the script in the request.
        scripted = b'"code":"engine_error"' in line
        if status >= 500 and status not in ALLOWED_5XX and not scripted:
            raise AssertionError(f"{bytes(line[:600])!r}\nfor {self.sent!r}")

    def step(self):
        """False: there is nothing to do."""
        now = time.monotonic()
        moved = False
        try:
            if self.to_send:
                size = self.random.choice((1, 100, 65536))
                sent = self.socket.send(self.to_send[:size])
                self.to_send = self.to_send[sent:]
                moved = True
        except BlockingIOError:
            pass
        except OSError:
            self.to_send = b""
        try:
            data = self.socket.recv(65536)
            moved = True
            if not data:
                self.finish()
                return True
            self.received += data
        except BlockingIOError:
            pass
        except OSError:
            self.finish()
            return True
        if moved:
            self.last = now
        elif now - self.last > QUIET_S:  # the server waits for the rest of a request
            self.finish()
            return True
        return moved

    def finish(self):
        self.close()
        if self.left > 0:
            self.open()

    @property
    def done(self):
        return self.socket is None


def main():
    harness.PROGRAM = sys.argv[1]
    count = int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20261129
    random_ = random.Random(seed)
    requests = valid_requests(random_)
    statuses = {}
    with harness.Server("--cors-origin", "https://a.example", "--stub-pause-us", "0") as server:
        server.complete("a")
        harness.eventually(lambda: server.descriptors() > 0)
        descriptors = server.descriptors()
        abusers = [Abuser(server.address, requests, random.Random(seed + i), count // CONNECTIONS + (i < count % CONNECTIONS), statuses)
                   for i in range(CONNECTIONS)]
        memory = 0
        while abusers := [abuser for abuser in abusers if not abuser.done]:
            moved = [abuser.step() for abuser in abusers]
            if not any(moved):
                select.select([abuser.socket for abuser in abusers if not abuser.done], [], [], 0.01)
            if not server.alive():
                raise AssertionError("the server has died:\n" + server.log()[-4000:])
            if memory == 0 and sum(statuses.values()) > 1000:
                memory = server.memory_bytes()
        print("answers by status:", dict(sorted(statuses.items())))
        # Most connections end with their first broken request, and what is behind it is never read.
        if sum(statuses.values()) < count // 10 or len(statuses) < 5:
            raise AssertionError("few of the requests were answered: is anything being tested?")
        if not server.idle():
            raise AssertionError("the engine has requests of clients that have gone")
        if not harness.eventually(lambda: server.descriptors() <= descriptors):
            raise AssertionError(f"{server.descriptors()} descriptors are open, {descriptors} were at the start")
        answer = server.complete("a b").json()["choices"][0]["text"]
        if answer != "a b":
            raise AssertionError(f"a good request gets {answer!r} now")
        grown = server.memory_bytes() - memory
        if memory != 0 and grown > 128 << 20 and not harness.SANITIZED:
            raise AssertionError(f"its memory has grown by {grown >> 20} MiB")


if __name__ == "__main__":
    main()
