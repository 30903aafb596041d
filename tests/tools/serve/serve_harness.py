"""Starts the server with the stub engine behind it, and talks to it over raw sockets.

The stub plays what a prompt says (stub_script.h): "a {ms:50} b" is the token "a", a pause and the token " b".
"""
import atexit
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

PROGRAM = ""
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="fd-serve-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
MODEL = SCRATCH / "tiny-model"
MODEL.mkdir()

# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = int(os.environ.get("PROGRAM_LIMIT_S", 60))
SANITIZED = bool(os.environ.get("PROGRAM_SANITIZED"))


def eventually(what, seconds=LIMIT_S):
    """Waits until what() is true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


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


def as_user_with_default_signals():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def command(*arguments, model=MODEL):
    return [PROGRAM, "serve", "--model", str(model), *map(str, arguments)]


def run_to_end(*arguments, model=MODEL):
    """For what does not start."""
    return subprocess.run(command(*arguments, model=model), capture_output=True, text=True, timeout=LIMIT_S)


class Server:
    """A running server. Its log and access log are in log() and access_lines()."""

    def __init__(self, *arguments, tls=None, wait=True):
        arguments = list(map(str, arguments))
        if "--port" not in arguments and "--uds" not in arguments:
            arguments += ["--port", "0"]
        self.uds = arguments[arguments.index("--uds") + 1] if "--uds" in arguments else None
        self.tls = tls
        handle, name = tempfile.mkstemp(dir=SCRATCH, prefix="access-")
        self.stdout_path = pathlib.Path(name)
        self.process = subprocess.Popen(command(*arguments), stdin=subprocess.DEVNULL, stdout=handle,
                                        stderr=subprocess.PIPE, preexec_fn=as_user_with_default_signals)
        os.close(handle)
        self.lines = []
        self.address = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if wait and not self.ready.wait(LIMIT_S) or self.address is None and wait:
            self.kill()
            raise AssertionError("the server is not ready:\n" + self.log())

    def read_log(self):
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            match = re.search(r"ready on (\S+)", line)
            if match and self.address is None:
                port = re.fullmatch(r"https?://[^/]*:(\d+)/?", match.group(1))
                self.address = int(port.group(1)) if port else self.uds
                self.ready.set()
        self.ready.set()

    def log(self):
        return "\n".join(self.lines)

    def access_lines(self):
        whole = self.stdout_path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.split("\n") if line]

    def client(self, **more):
        return Client(self.address, tls=self.tls, **more)

    def ask(self, method, path, body=None, headers=()):
        with self.client() as client:
            return client.ask(method, path, body, headers)

    def complete(self, prompt, headers=(), **fields):
        return self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1000, **fields}, headers)

    def metrics(self, headers=()):
        """{name: [(labels, value)]}"""
        response = self.ask("GET", "/metrics", headers=headers)
        if response.status != 200:
            raise AssertionError(f"/metrics: {response.status} {response.body}")
        families = {}
        for line in response.body.decode().splitlines():
            if not line or line.startswith("#"):
                continue
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
            if match is None:
                raise AssertionError(f"not a line of metrics: {line}")
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
            families.setdefault(match.group(1), []).append((labels, float(match.group(3))))
        return families

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        samples = self.metrics().get(name)
        if samples is None:
            raise AssertionError(f"there is no metric {name}")
        return sum(value for have, value in samples if labels.items() <= have.items())

    def idle(self):
        """Waits until the engine has no request."""
        return eventually(lambda: self.metric("vllm:num_requests_running") == 0
                          and self.metric("vllm:num_requests_waiting") == 0)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

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

    def stop(self):
        """Ends it as an operator does; a sanitizer's report or a crash is an error."""
        if self.alive():
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
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
