"""Starts the server with the stub engine behind it, and talks to it over raw sockets.

The stub plays what a prompt says (stub_script.h): "a {ms:50} b" is the token "a", a pause and the token " b".
"""
import atexit
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from server_process import LIMIT_S, ServerProcess, eventually, metric_families  # noqa: E402

PROGRAM = ""
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="fd-serve-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
MODEL = SCRATCH / "tiny-model"
MODEL.mkdir()

SANITIZED = bool(os.environ.get("PROGRAM_SANITIZED"))


class Response:
    """An answer: status, headers (lower case), body; `cut` if it ended before its end was said."""

    def __init__(self, version, status, headers):
        self.version, self.status, self.headers = version, status, headers
        self.body = b""
        self.chunks = []
        self.cut = False

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]

    def events(self):
        """What the `data:` lines of a stream say."""
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]

    def objects(self):
        return [json.loads(event) for event in self.events() if event != "[DONE]"]


class Gone(Exception):
    """The server has closed the connection."""


class Client:
    """One connection. `address`: a port or the path of a socket."""

    def __init__(self, address, tls=None, receive_bytes=None):
        unix = not isinstance(address, int)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(address) if unix else ("127.0.0.1", address))
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.buffer = b""
        self.event_lines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Ends the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def fill(self):
        try:
            data = self.socket.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if not data:
            raise Gone
        self.buffer += data

    def take(self, count):
        while len(self.buffer) < count:
            self.fill()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def line(self):
        while b"\r\n" not in self.buffer:
            self.fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def head(self):
        version, status, _ = (self.line() + b" ").split(b" ", 2)
        headers = {}
        while line := self.line():
            name, value = line.decode().split(":", 1)
            name = name.lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        return Response(version.decode(), int(status), headers)

    def chunk(self):
        """The next chunk of a chunked body; b"" at its end."""
        size = int(self.line(), 16)
        data = self.take(size)
        if self.take(2) != b"\r\n":
            raise AssertionError("a chunk does not end with CR LF")
        return data

    def response(self, method="GET"):
        response = self.head()
        if response.status == 100:
            response = self.head()
        try:
            if method == "HEAD" or response.status in (204, 304):
                pass
            elif response.headers.get("transfer-encoding", "").lower() == "chunked":
                while chunk := self.chunk():
                    response.chunks.append(chunk)
                    response.body += chunk
            elif "content-length" in response.headers:
                response.body = self.take(int(response.headers["content-length"]))
            else:
                try:
                    while True:
                        response.body += self.take(1) + self.buffer
                        self.buffer = b""
                except Gone:
                    pass
        except Gone:
            response.cut = True
            response.body = b"".join(response.chunks)
        return response

    def closed(self):
        """Whether the server closes it, having said nothing more."""
        try:
            self.fill()
            return False
        except Gone:
            return True

    def ask(self, method, path, body=None, headers=()):
        self.send(request(method, path, body, headers))
        return self.response(method)

    def first_event(self):
        """Reads up to the first event of a stream, and returns it."""
        response = self.head()
        if response.status != 200:
            raise AssertionError(f"status {response.status}")
        return self.next_event()

    def next_event(self):
        while not self.event_lines:
            lines = self.chunk().decode().split("\n")
            self.event_lines = [line[6:] for line in lines if line.startswith("data: ")]
        return self.event_lines.pop(0)


def request(method, path, body=None, headers=()):
    """The bytes of a request. `body`: bytes, or what becomes JSON."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        lines.append("Content-Type: application/json")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def completion(prompt, **fields):
    """The bytes of a request for a completion."""
    return request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1000, **fields})


def chat(messages, **fields):
    """The bytes of a request for a chat completion. `messages`: a list, or what a user says."""
    return request("POST", "/v1/chat/completions", chat_body(messages, **fields))


def chat_body(messages, **fields):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"messages": messages, **fields}


def command(*arguments, model=MODEL):
    return [PROGRAM, "serve", "--model", str(model), *map(str, arguments)]


def run_to_end(*arguments, model=MODEL):
    """For what does not start."""
    return subprocess.run(command(*arguments, model=model), capture_output=True, text=True, timeout=LIMIT_S)


class Server(ServerProcess):
    """A running server with the stub engine. Its address is a port, or a unix socket's path."""

    def __init__(self, *arguments, tls=None, wait=True):
        arguments = list(map(str, arguments))
        if "--port" not in arguments and "--uds" not in arguments:
            arguments += ["--port", "0"]
        self.uds = arguments[arguments.index("--uds") + 1] if "--uds" in arguments else None
        self.tls = tls
        super().__init__(command(*arguments), SCRATCH, wait)

    @property
    def address(self):
        if self.url is None:
            return None
        port = re.fullmatch(r"https?://[^/]*:(\d+)", self.url)
        return int(port.group(1)) if port else self.uds

    def client(self, **more):
        return Client(self.address, tls=self.tls, **more)

    def ask(self, method, path, body=None, headers=()):
        with self.client() as client:
            return client.ask(method, path, body, headers)

    def complete(self, prompt, headers=(), **fields):
        return self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1000, **fields}, headers)

    def chat(self, messages, headers=(), **fields):
        return self.ask("POST", "/v1/chat/completions", chat_body(messages, **fields), headers)

    def metrics(self, headers=()):
        """{name: [(labels, value)]}"""
        response = self.ask("GET", "/metrics", headers=headers)
        if response.status != 200:
            raise AssertionError(f"/metrics: {response.status} {response.body}")
        return metric_families(response.body.decode())

    def end(self):
        super().end()
        # What still runs is cut. A second signal to a process that is at its end already would be what ends it.
        if not eventually(lambda: not self.alive(), seconds=2):
            super().end()


def make_certificate(name, common_name="localhost"):
    """A key and a certificate that it has signed itself: paths."""
    key, certificate = SCRATCH / f"{name}.key", SCRATCH / f"{name}.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={common_name}", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True, timeout=LIMIT_S)
    return key, certificate


def tls_client():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
