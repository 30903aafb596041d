"""What is refused, and how the answer says why."""
import json

import serve_harness as harness
from http_endpoints_cases import WithServer


class Refusals(WithServer):
    def refused(self, param=None, prompt="a", status=400, **fields):
        response = self.server.complete(prompt, **fields)
        if param is None:
            return self.assert_error(response, status, type="invalid_request_error")
        return self.assert_error(response, status, type="invalid_request_error", param=param)

    def post(self, body, headers=()):
        return self.server.ask("POST", "/v1/completions", body, headers)

    def test_a_prompt_that_is_too_long(self):  # bug class 16
        with harness.Server("--max-context", "100") as server:
            for stream in (False, True):
                for prompt in ("{repeat:3: a}" + " w" * 200, list(b"x" * 203)):
                    response = server.complete(prompt, stream=stream)
                    message = self.assert_error(response, 400, code="context_length_exceeded", param="prompt")
                    self.assertIn("100", message)
                    self.assertRegex(message, r"20[0-9]")  # its own length
            response = server.complete([list(b"a"), list(b"x" * 100)])
            self.assert_error(response, 400, code="context_length_exceeded")
            self.assertEqual(server.ask("GET", "/v1/models").json()["data"][0]["max_model_len"], 100)
            self.assertEqual(server.complete(list(b"x" * 99), max_tokens=1).status, 200)
            self.assertTrue(server.idle())

    def test_broken_json_says_where(self):
        for body, line, column in ((b'{"prompt": "a",}', 1, 16), (b'{\n "prompt": tru\n}', 2, 15), (b'{"a":\n\n}', 3, 1)):
            message = self.assert_error(self.post(body), 400)
            self.assertRegex(message, rf"line {line}\b")
            self.assertRegex(message, r"column \d+")
            found = int(message.split("column ")[1].split()[0].rstrip(",:;."))
            self.assertLessEqual(abs(found - column), 2, message)

    def test_bodies_that_are_no_object(self):
        for body in (b"", b" ", b"[]", b"1", b"null", b'"a"', b"{}x", b"{}{}", b'{"prompt"', b"\x00", b"{'prompt': 1}"):
            self.assert_error(self.post(body), 400)

    def test_json_that_is_none(self):
        for body in (b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
                     b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "n": 01}',
                     b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00\\ud800"}', b'{"prompt": "\xff"}',
                     b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xc0\x80"}', b'{"prompt": "\xf5\x80\x80\x80"}',
                     b'{"prompt": "a\nb"}'):
            self.assert_error(self.post(body), 400)
        self.assertIn(self.post(b'\xef\xbb\xbf{"prompt": "a"}').status, (200, 400))  # a BOM

    def test_depth(self):  # bug class 27
        for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
            for count in (65, 1000, 100000):
                deep = b'{"prompt": "a", "x": ' + opened * count + b"1" + closed * count + b"}"
                self.assert_error(self.post(deep), 400)
                self.assert_error(self.post(deep[:-count]), 400)
        self.assertEqual(self.post(b'{"prompt": "a", "x": ' + b"[" * 20 + b"]" * 20 + b"}").status, 200)

    def test_fields_that_are_wrong(self):
        for name, values in {
                "n": (0, -1, 129, 1e9, 1e300, "2", [1], True, 1.5), "max_tokens": (-1, "5", 1e300, 1.5, [], True),
                "temperature": (-0.1, "1", [], True), "top_p": (0, -1, 1.1, "x"), "top_k": (-2, 1.5, "x"),
                "min_p": (-0.1, 1.1), "logprobs": (-1, 21, 1e9, "x"), "stop": (5, [5], {}, ["a"] * 17, "x" * 257, [""]),
                "seed": ("x", 1.5, []), "stream": ("yes", 1), "echo": ("yes",),
                "logit_bias": ([], {"x": 1}, {"97": "x"}, {"-1": 1}, {"65536": 1}, {"97": 101}, {"97": None},
                               {str(i): 1 for i in range(1025)}),
                "repetition_penalty": (0, -1, "x"), "presence_penalty": (-2.1, 2.1, "x"), "min_tokens": (-1, "x"),
                "stop_token_ids": ("x", ["x"], [-1], [65536], 5), "ignore_eos": ("x",), "user": (5, []),
                "model": (5, []), "stream_options": (5, "x", []), "prefix_cache": ("yes", 0, []),
                "cache_salt": ("", 5, ["x"], True, "x" * 4097)}.items():
            for value in values:
                with self.subTest(name, value=str(value)[:60]):
                    more = {"stream": True} if name == "stream_options" else {}
                    message = self.assert_error(self.server.complete("a", **{**more, name: value}), 400,
                                                type="invalid_request_error")
                    self.assertLess(len(message), 1000)
                    self.assertIn(name, message + str(self.server.complete("a", **{**more, name: value}).error()["param"]))

    def test_prompts_that_are_wrong(self):
        for prompt in (None, [], [[]], ["a", 1], [1, "a"], [[1], "a"], [["a"]], [-1], [65536], [2**40], [1.5], {}, 5,
                       True, [None], [True], [[[1]]], ["a"] * 1025):
            with self.subTest(str(prompt)[:60]):
                self.assert_error(self.server.complete(prompt), 400, param="prompt")
        self.assert_error(self.post(b"{}"), 400, param="prompt")

    def test_too_many_sequences(self):
        self.assert_error(self.server.complete(["a"] * 100, n=100), 400)

    def test_what_would_change_the_answer_is_not_ignored(self):
        for name, value in {"suffix": "x", "response_format": {"type": "json_object"}, "guided_json": {"type": "object"},
                            "bad_words": ["x"], "allowed_token_ids": [1], "use_beam_search": True,
                            "truncate_prompt_tokens": 5, "logits_processors": ["x"]}.items():
            with self.subTest(name):
                self.refused(param=name, **{name: value})

    def test_nothing_is_fetched(self):  # bug class 28
        import socket
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0.5)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
            self.server.complete(url, model=None, user=url)
            self.server.complete([url], prompt_embeds=url, image_url={"url": url})
            with self.assertRaises(TimeoutError):
                listener.accept()

    def test_one_bad_request_is_alone(self):  # bug class 25
        with self.server.client() as good:
            good.send(harness.completion("{every:5}{repeat:60: a}", stream=True))
            good.first_event()
            for fields in ({"repetition_penalty": 1e300}, {"logit_bias": {"0": 1e300}}, {"stop": ["("]}, {"n": 10**30},
                           {"seed": 2**64}, {"seed": -1}, {"stop": ["\u0000"]}, {"user": "\u0000"}):
                self.assertIn(self.server.complete("a", **fields).status, (200, 400), fields)
            rest = []
            while (event := good.next_event()) != "[DONE]":
                rest.append(json.loads(event)["choices"][0]["text"])
            self.assertEqual(len("".join(rest).split()), 59)

    def test_bodies_that_are_too_large(self):  # bug class 27
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n{")
            self.assert_error(client.response(), 413)
            self.assertTrue(client.closed())
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(200):
                    client.send(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
            except OSError:
                pass
            try:
                self.assert_error(client.response(), 413)
            except harness.Gone:
                pass  # its answer was lost with the rest of the connection
        self.assertEqual(self.server.complete("a").status, 200)
        self.assertEqual(self.server.complete("a", metadata={"a": "x" * 4_000_000}).status, 200)

    def test_compressed_bodies(self):
        for coding in ("gzip", "br", "deflate", "zstd", "gzip, gzip"):
            response = self.post(b"\x1f\x8b\x08", {"Content-Encoding": coding})
            self.assert_error(response, 415)
        self.assertEqual(self.post(b'{"prompt": "a"}', {"Content-Encoding": "identity"}).status, 200)


class QueueLimits(WithServer):
    ARGUMENTS = ("--max-sequences", "1", "--max-queued-requests", "3", "--max-queued-tokens", "60")

    def setUp(self):
        self.clients = []

    def tearDown(self):
        for client in self.clients:
            client.close()
        self.assertTrue(self.server.idle())

    def occupy(self, prompt, running, waiting, **fields):
        client = self.server.client()
        self.clients.append(client)
        client.send(harness.completion(prompt, stream=True, **fields))
        self.assertTrue(harness.eventually(
            lambda: (self.server.metric("vllm:num_requests_running"),
                     self.server.metric("vllm:num_requests_waiting")) == (running, waiting)))

    def check_overloaded(self, response):
        self.assert_error(response, 503, type="overloaded_error")
        self.assertTrue(1 <= int(response.headers["retry-after"]) <= 120)

    def test_requests(self):  # bug class 5
        self.occupy("a {wait}", 1, 0)
        self.clients[0].first_event()
        for i in range(3):
            self.occupy("b", 1, i + 1)
        for stream in (False, True):
            self.check_overloaded(self.server.complete("c", stream=stream))
        self.assertEqual(self.server.ask("GET", "/ready").status, 503)
        self.clients.pop().close()
        self.assertTrue(harness.eventually(lambda: self.server.metric("vllm:num_requests_waiting") == 2))
        self.assertEqual(self.server.ask("GET", "/ready").status, 200)
        self.occupy("d", 1, 3)

    def test_tokens(self):  # bug class 5
        self.occupy("a {wait}", 1, 0)
        self.clients[0].first_event()
        self.occupy("b" + " b" * 39, 1, 1)
        self.check_overloaded(self.server.complete("c" + " c" * 39))
        self.occupy("c", 1, 2)

    def test_choices_wait_each_and_their_prompt_once(self):
        self.occupy("a {wait}", 1, 0)
        self.clients[0].first_event()
        self.occupy("b", 1, 1)
        self.occupy("c" + " c" * 39, 1, 3, n=2)
        self.check_overloaded(self.server.complete("d"))

    def test_a_request_that_is_alone_may_be_long(self):
        self.assertEqual(self.server.complete("a" + " a" * 99, max_tokens=1).status, 200)

    def test_the_engines_own_limit(self):
        with harness.Server("--max-queue", "1") as server, server.client() as client:
            client.send(harness.completion("a {wait}", stream=True))
            client.first_event()
            self.check_overloaded(server.complete("b"))
            # One of two prompts was taken, and is ended.
            client.close()
            self.assertTrue(server.idle())
            self.check_overloaded(server.complete(["b {wait}", "c {wait}"]))
            self.assertTrue(server.idle())
            self.check_overloaded(server.complete("b", n=2))  # each choice has a place
