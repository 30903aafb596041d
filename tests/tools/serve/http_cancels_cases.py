"""Clients that go, and clients that do not read."""
import json
import socket
import time

import serve_harness as harness
from http_endpoints_cases import WithServer

# How a client goes. A half-closed connection is gone, too: whoever waits for an answer keeps it open.
ENDINGS = {"FIN": lambda client: client.close(),
           "RST": lambda client: client.reset(),
           "half-closed": lambda client: client.socket.shutdown(socket.SHUT_WR)}


class Cancels(WithServer):
    ARGUMENTS = ("--max-sequences", "16")

    def aborted(self):
        return self.server.metric("vllm:request_success_total", finished_reason="abort")

    def check_cancel(self, prompt, go, tokens=0, state="running", **fields):
        """Sends a request, reads `tokens` events of it, waits for its state in the engine, and goes."""
        before = self.aborted()
        client = self.server.client()
        client.send(harness.completion(prompt, **fields))
        for i in range(tokens):
            client.first_event() if i == 0 else client.next_event()
        sequences = fields.get("n", 1) * (len(prompt) if isinstance(prompt, list) else 1)
        arrived = harness.eventually(lambda: self.server.metric(f"vllm:num_requests_{state}") == sequences)
        self.assertTrue(arrived, f"{prompt}: not {state}")
        go(client)
        self.assertTrue(self.server.idle(), f"{prompt}: the engine still has it")  # bug class 1
        self.assertTrue(harness.eventually(lambda: self.aborted() == before + 1), "it is counted once")  # bug class 18
        client.close()

    def test_in_the_queue(self):  # bug class 1
        for name, go in ENDINGS.items():
            for stream in (True, False):
                with self.subTest(name, stream=stream):
                    self.check_cancel("{queue:60000} a", go, state="waiting", stream=stream)

    def test_in_prefill(self):  # bug class 1
        for name, go in ENDINGS.items():
            for stream in (True, False):
                with self.subTest(name, stream=stream):
                    self.check_cancel("{prefill:60000} a", go, stream=stream)

    def test_while_decoding(self):  # bug class 1
        for name, go in ENDINGS.items():
            for tokens in (0, 1, 7):
                with self.subTest(name, tokens=tokens):
                    self.check_cancel("{every:5}{repeat:%d: a}{wait}" % tokens, go, tokens=tokens, stream=True)
            with self.subTest(name, stream=False):
                self.check_cancel("{repeat:5: a}{wait}", go)

    def test_while_tokens_stream(self):
        for go in ENDINGS.values():
            self.check_cancel("{every:1}{repeat:1000000: a}", go, tokens=3, stream=True, max_tokens=8000)

    def test_all_choices_and_prompts(self):  # bug class 2
        for stream in (True, False):
            self.check_cancel("a {wait}", ENDINGS["FIN"], n=4, stream=stream)
            self.check_cancel(["a {wait}", "b {wait}", "{prefill:60000}"], ENDINGS["RST"], n=2, stream=stream)

    def test_with_pipelined_requests_behind(self):
        for behind in (b"POST /v1/comp", harness.request("GET", "/version") * 3, harness.completion("a") * 2000):
            before = self.aborted()
            client = self.server.client()
            client.socket.setblocking(True)
            client.socket.settimeout(2)
            try:
                client.send(harness.completion("a {wait}", stream=True) + behind)
            except TimeoutError:
                pass  # the server takes no more before the first is answered
            harness.eventually(lambda: self.server.metric("vllm:num_requests_running") == 1)
            client.close()
            self.assertTrue(self.server.idle())
            self.assertTrue(harness.eventually(lambda: self.aborted() >= before + 1))

    def test_requests_that_never_came_whole(self):
        whole = harness.completion("a b c")
        self.server.ask("GET", "/version")
        before = self.server.descriptors()
        for end in (1, 5, 20, 40, len(whole) - 30, len(whole) - 1):
            for go in (ENDINGS["FIN"], ENDINGS["RST"]):
                client = self.server.client()
                client.send(whole[:end])
                go(client)
        self.assertTrue(harness.eventually(lambda: self.server.descriptors() <= before))
        self.assertTrue(self.server.idle())

    def test_one_clients_cancel_is_no_other_clients(self):  # bug class 3
        survivors = [self.server.client() for _ in range(4)]
        for client in survivors:
            client.send(harness.completion("{every:20}{repeat:30: a}", stream=True))
        for _ in range(10):
            gone = self.server.client()
            gone.send(harness.completion("{every:1}{repeat:5000: b}", stream=True))
            gone.first_event()
            gone.close()
        for client in survivors:
            response = client.response()
            self.assertEqual(response.events()[-1], "[DONE]")
            text = "".join(chunk["choices"][0]["text"] for chunk in response.objects())
            self.assertEqual(text, " a" * 30)
            client.close()
        self.assertTrue(self.server.idle())

    def test_an_engine_that_ends_it_late(self):  # bug class 4
        for stream in (True, False):
            self.check_cancel("{deaf:300} a {wait}", ENDINGS["FIN"], stream=stream)
            self.check_cancel("{deaf:300} a {every:1}{repeat:100000: b}", ENDINGS["RST"], n=3, stream=stream)

    def test_nothing_is_left_of_many(self):
        self.server.ask("GET", "/version")
        before = self.server.descriptors()
        for round_ in range(5):
            clients = []
            for i in range(30):
                client = self.server.client()
                client.send(harness.completion(("{queue:60000}", "{prefill:60000}", "a {wait}")[i % 3], stream=i % 2 == 0))
                clients.append(client)
            for i, client in enumerate(clients):
                list(ENDINGS.values())[i % 2](client)
        self.assertTrue(self.server.idle())
        self.assertTrue(harness.eventually(lambda: self.server.descriptors() <= before))
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)
        self.assertEqual(self.server.complete("a").status, 200)


class SlowReaders(WithServer):
    ARGUMENTS = ("--slow-client-s", "1", "--max-context", "100000000")

    def wait_for_slow_client(self):
        return harness.eventually(lambda: [line for line in self.server.access_lines()
                                           if line.get("ended_by") == "slow_client"])

    def test_a_stream_that_nobody_reads(self):  # bug class 6
        self.server.complete("a")
        memory_before = self.server.memory_bytes()
        slow = self.server.client(receive_bytes=4096)
        slow.send(harness.completion("{every-us:50}{repeat:100000000: xxxxxxxxxxxxxxxx}", stream=True, max_tokens=90000000,
                                     logprobs=5))
        self.assertEqual(slow.head().status, 200)
        other = self.server.complete("{every:2}{repeat:200: y}", stream=True)
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in other.objects()), " y" * 200)
        self.assertTrue(self.wait_for_slow_client())
        self.assertTrue(self.server.idle())
        if not harness.SANITIZED:
            self.assertLess(self.server.memory_bytes() - memory_before, 64 << 20)
        # What it reads in the end is no whole answer.
        response = harness.Response("", 200, {})
        try:
            while chunk := slow.chunk():
                response.body += chunk
            self.fail("the stream ended as if all were well")
        except (harness.Gone, ValueError):
            pass
        self.assertNotIn(b"[DONE]", response.body)
        slow.close()

    def test_an_answer_that_nobody_reads(self):
        self.server.ask("GET", "/version")
        before = self.server.descriptors()
        slow = self.server.client(receive_bytes=4096)
        slow.send(harness.completion("{every:0}{repeat:20:%s}" % ("x" * 900) + "{big:3000000}" * 4))
        self.assertTrue(harness.eventually(lambda: self.server.descriptors() <= before), "the connection is kept")
        slow.close()

    def test_a_reader_that_is_slow_but_reads(self):
        with self.server.client(receive_bytes=4096) as client:
            client.send(harness.completion("{every:2}{repeat:1000: z}", stream=True))
            self.assertEqual(client.head().status, 200)
            text = ""
            for i in range(100000):
                chunk = client.chunk().decode()
                if not chunk:
                    break
                for line in chunk.split("\n"):
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
                if i % 100 == 0:
                    time.sleep(0.15)
        self.assertEqual(text, " z" * 1000)
