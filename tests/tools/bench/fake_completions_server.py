"""A server of the completions API that plays what the prompt says, with pauses and faults, over raw sockets.

The prompt is words: a number of tokens, then `ms=N` (before each chunk), `first_ms=N` (before the first), and one fault of
FAULTS. Other prompts (token ids, other texts) get max_tokens tokens at once.
"""
import asyncio
import json
import threading

FAULTS = {"status", "error-event", "garbage", "no-done", "cut-chunk", "close-first", "close-mid", "not-sse", "after-done",
          "hang", "no-choices", "no-usage", "close-after", "http10", "no-http", "silent-close", "empty-status", "split",
          "error-200", "broken-body", "cut-headers"}


class FakeServer:
    """`with FakeServer() as server:` serves on server.port, or on server.path if it was given one."""

    def __init__(self, path=None, vocab_size=None, model="fake", max_model_len=None):
        self.path, self.vocab_size, self.model, self.max_model_len = path, vocab_size, model, max_model_len
        self.connections, self.in_flight, self.in_flight_max = 0, 0, 0
        self.requests = []  # (method, target, headers, body) of each

    def __enter__(self):
        started = threading.Event()

        async def main():
            self.stop = asyncio.Event()
            self.loop = asyncio.get_running_loop()
            self.tasks = set()
            if self.path:
                server = await asyncio.start_unix_server(self.serve, self.path)
            else:
                server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=512)
                self.port = server.sockets[0].getsockname()[1]
            started.set()
            await self.stop.wait()
            server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self.thread = threading.Thread(target=lambda: asyncio.run(main()))
        self.thread.start()
        started.wait()
        return self

    def __exit__(self, *exception):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()

    @property
    def url(self):
        return f"unix:{self.path}" if self.path else f"http://127.0.0.1:{self.port}"

    def bodies(self):
        return [json.loads(body) for method, _, _, body in self.requests if method == "POST"]

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while await self.answer_next(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer_next(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = first.split(" ")
        self.requests.append((method, target, headers, body))
        if method == "GET":
            return await self.answer_get(target, writer)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            return await self.complete(json.loads(body), writer)
        finally:
            self.in_flight -= 1

    async def answer_get(self, target, writer):
        found = {}
        if target.endswith("/v1/models"):
            found = {"object": "list", "data": [{"id": self.model, "object": "model"}, {"id": "other"}]}
            if self.max_model_len:
                found["data"][0]["max_model_len"] = self.max_model_len
        elif target.endswith("/tokenizer_info") and self.vocab_size:
            found = {"vocab_size": self.vocab_size}
        status = "200 OK" if found else "404 Not Found"
        return await self.whole(writer, status, json.dumps(found or {"error": {"message": "no such path"}}))

    async def whole(self, writer, status, text, kind="application/json"):
        data = text.encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return True

    async def complete(self, request, writer):
        words = request["prompt"].split() if isinstance(request["prompt"], str) else []
        tokens = int(words[0]) if words and words[0].isdigit() else request["max_tokens"]
        pauses = dict(word.split("=") for word in words if "=" in word)
        fault = next((word for word in words if word in FAULTS), "")
        pause_s = float(pauses.get("ms", 0)) * 1e-3
        first_s = float(pauses.get("first_ms", 0)) * 1e-3
        prompt_tokens = len(words) or len(request["prompt"])
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}

        if fault == "status":
            return await self.whole(writer, "503 Service Unavailable",
                                    json.dumps({"error": {"message": "the queue is full", "type": "overloaded_error"}}))
        if fault == "empty-status":
            return await self.whole(writer, "500 Internal Server Error", "")
        if fault == "not-sse":
            return await self.whole(writer, "200 OK", "<html>", "text/html")
        if fault == "no-http":
            writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n")
            return False
        if fault == "silent-close":
            return False
        if fault == "cut-headers":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
            return False
        if not request["stream"]:
            await asyncio.sleep(first_s + pause_s * tokens)
            if fault == "error-200":
                return await self.whole(writer, "200 OK", json.dumps({"error": {"message": "it broke"}}))
            if fault == "broken-body":
                return await self.whole(writer, "200 OK", '{"choices": [')
            text = {"choices": [{"index": 0, "text": "w " * tokens, "finish_reason": "length"}], "usage": usage}
            return await self.whole(writer, "200 OK", json.dumps(text))

        chunked = fault != "http10"
        head = f"HTTP/1.{int(chunked)} 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        head += "Transfer-Encoding: chunked\r\n" if chunked else ""
        head += "Connection: close\r\n" if fault == "close-after" else ""
        writer.write((head + "\r\n").encode())

        async def send(data):
            framed = b"%x\r\n%s\r\n" % (len(data), data) if chunked else data
            if fault == "split":  # byte for byte
                for i in range(len(framed)):
                    writer.write(framed[i:i + 1])
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write(b"" if fault == "split" else framed)
            await writer.drain()

        async def event(value):
            await send(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode())

        if fault == "close-first":
            return False
        await send(b": ping\n\n")
        await asyncio.sleep(first_s)
        for i in range(0 if fault == "no-choices" else tokens):
            await asyncio.sleep(pause_s)
            if i == tokens // 2:
                if fault == "error-event":
                    await event({"error": {"message": "the home has gone", "type": "server_error"}})
                    return False
                if fault == "garbage":
                    await event('{"choices": [{"text": "\x01')
                if fault == "close-mid":
                    return False
                if fault == "cut-chunk":
                    writer.write(b'ff\r\ndata: {"choices":[{"te')
                    await writer.drain()
                    return False
                if fault == "hang":
                    await asyncio.sleep(3600)
            finish = "length" if i == tokens - 1 else None
            await event({"id": "c", "choices": [{"index": 0, "text": f"w{i} ", "finish_reason": finish}], "usage": None})
        if fault != "no-usage":
            await event({"id": "c", "choices": [], "usage": usage})
        if fault != "no-done":
            await event("[DONE]")
        if fault == "after-done":
            await event({"choices": [{"text": "more"}]})
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return chunked and fault != "close-after"
