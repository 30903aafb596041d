"""Streams of POST /v1/completions."""
import json
import time

import serve_harness as harness
from http_endpoints_cases import WithServer


class Streams(WithServer):
    def stream(self, prompt, **fields):
        response = self.server.complete(prompt, stream=True, **fields)
        self.assertEqual(response.status, 200, response.body)
        return response

    def text(self, response, index=0):
        return "".join(choice["text"] for chunk in response.objects() for choice in chunk["choices"]
                       if choice["index"] == index)

    def test_shape(self):
        response = self.stream("one {ms:20} two {ms:20} three")
        self.assertEqual(response.headers["content-type"].replace(" ", ""), "text/event-stream;charset=utf-8")
        self.assertIn("no-cache", response.headers["cache-control"])
        self.assertEqual(response.headers["x-accel-buffering"], "no")  # bug class 19
        self.assertIn("x-request-id", response.headers)
        self.assertNotIn("content-length", response.headers)
        self.assertFalse(response.cut)
        self.assertEqual(response.events()[-1], "[DONE]")
        chunks = response.objects()
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
        for chunk in chunks:
            self.assertEqual(chunk["object"], "text_completion")
            self.assertEqual(chunk["model"], "tiny-model")
            self.assertEqual(len(chunk["choices"]), 1)
            self.assertEqual(chunk["choices"][0]["index"], 0)
            self.assertIsNone(chunk.get("usage"))  # bug class 13: nobody has asked
        self.assertEqual(self.text(response), "one two three")
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        self.assertEqual(reasons, [None] * (len(reasons) - 1) + ["stop"])

    def test_one_token_a_chunk(self):
        response = self.stream("{every:20} one two three four")
        texts = [chunk["choices"][0]["text"] for chunk in response.objects()]
        self.assertEqual([text for text in texts if text], [" one", " two", " three", " four"])

    def test_tokens_come_while_the_rest_is_waited_for(self):
        with self.server.client() as client:
            client.send(harness.completion("a {wait}", stream=True))
            self.assertEqual(json.loads(client.first_event())["choices"][0]["text"], "a")
        self.assertTrue(self.server.idle())

    def test_usage(self):  # bug class 13
        response = self.stream("a b", stream_options={"include_usage": True})
        *chunks, last = response.objects()
        self.assertEqual(last["choices"], [])
        self.assertEqual(last["usage"]["prompt_tokens"], 3)
        self.assertEqual(last["usage"]["completion_tokens"], 2)
        self.assertEqual(last["usage"]["total_tokens"], 5)
        self.assertEqual(last["usage"]["prompt_tokens_details"], {"cached_tokens": 0})
        for chunk in chunks:
            self.assertIsNone(chunk["usage"])
            self.assertNotEqual(chunk["choices"], [])
        self.assertEqual(response.events()[-1], "[DONE]")
        for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
            self.assertTrue(all(chunk["choices"] for chunk in self.stream("a", stream_options=options).objects()))

    def test_usage_in_each_chunk(self):
        response = self.stream("{every:20} a b", stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [chunk["usage"]["completion_tokens"] for chunk in response.objects()]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 2)
        # What others had computed is said once it is known.
        response = self.stream("{every:50}{cached:2} a b", stream_options={"include_usage": True, "continuous_usage_stats": True})
        first, *_, last = response.objects()
        self.assertNotIn("prompt_tokens_details", first["usage"])
        self.assertEqual(last["usage"]["prompt_tokens_details"], {"cached_tokens": 2})

    def test_a_stream_says_what_an_answer_says(self):
        prompts = ["one two three", "{bytes:e282}{bytes:ac} {bytes:f09f9880}", "a {repeat:50: b}", "{bytes:ff} x {bytes:e2}",
                   "{stop}", "{every:0}{repeat:300: q}"]
        for prompt in prompts:
            for more in ({}, {"stop": "b b b c"}, {"stop": ["two"]}, {"max_tokens": 2}, {"logprobs": 2}, {"echo": True},
                         {"echo": True, "logprobs": 1}, {"n": 3}, {"n": 2, "echo": True, "logprobs": 1}):
                whole = self.server.complete(prompt, seed=1, **more).json()
                streamed = self.stream(prompt, seed=1, stream_options={"include_usage": True}, **more)
                for choice in whole["choices"]:
                    self.assertEqual(self.text(streamed, choice["index"]), choice["text"], (prompt, more))
                    self.compare_logprobs(streamed, choice)
                self.assertEqual(streamed.objects()[-1]["usage"], whole["usage"])
                reasons = {choice["index"]: choice["finish_reason"] for chunk in streamed.objects()
                           for choice in chunk["choices"] if choice["finish_reason"]}
                self.assertEqual(reasons, {c["index"]: c["finish_reason"] for c in whole["choices"]})

    def compare_logprobs(self, streamed, choice):
        if choice["logprobs"] is None:
            return
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for chunk in streamed.objects() for part in chunk["choices"]
                      if part["index"] == choice["index"] and part["logprobs"] for value in part["logprobs"][key]]
            self.assertEqual(joined, choice["logprobs"][key], key)

    def test_characters_are_whole(self):  # bug class 11
        response = self.stream("{every:20}{bytes:f0}{bytes:9f}{bytes:98}{bytes:80} a {bytes:e282}")
        response.body.decode()
        self.assertEqual(self.text(response).rstrip("\ufffd"), "\U0001F600 a")
        for chunk in response.objects():
            if "[" not in chunk["choices"][0]["text"] and chunk["choices"][0]["finish_reason"] is None:
                self.assertNotIn("\ufffd", chunk["choices"][0]["text"])

    def test_what_clients_take_for_ends_of_lines_is_escaped(self):
        response = self.stream("a\u2028b {ms:1} c\u2029d \u0085 e\nf\rg")
        self.assertEqual(self.text(response), "a\u2028b c\u2029d \u0085 e\nf\rg")
        for forbidden in ("\u2028", "\u2029", "\u0085"):
            self.assertNotIn(forbidden, response.body.decode())

    def test_stop_strings_are_never_shown(self):  # bug class 12
        response = self.stream("{every:10} one ST OP two", stop=[" ST OP"])
        self.assertEqual(self.text(response), " one")
        self.assertEqual(response.objects()[-1]["choices"][0]["stop_reason"], " ST OP")
        self.assertEqual(self.text(self.stream("{every:10} one ST", stop=[" ST OP"])), " one ST")

    def test_several_choices(self):
        response = self.stream("{every:10}{seed} x y", n=3, seed=10)
        for k in range(3):
            self.assertEqual(self.text(response, k), f" {10 + k} x y")
        ends = [c["index"] for chunk in response.objects() for c in chunk["choices"] if c["finish_reason"]]
        self.assertEqual(sorted(ends), [0, 1, 2])
        self.assertEqual(response.events().count("[DONE]"), 1)

    def test_an_error_after_the_first_byte(self):  # bug classes 7 and 8
        response = self.stream("a {ms:50} b {ms:50}{error:home b is lost}", stream_options={"include_usage": True})
        self.assertTrue(response.cut, "the body must not end as if all were well")
        *chunks, last = response.objects()
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), "a b")
        self.assertTrue(all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks))
        self.assertIsInstance(last["error"]["message"], str)
        self.assertNotIn("[DONE]", response.events())
        self.assertTrue(self.server.idle())

    def test_an_error_of_one_choice_ends_the_others(self):  # bug class 2
        response = self.stream(["a {wait}", "b {ms:100}{error:gone}"])
        self.assertTrue(response.cut)
        self.assertIn("error", response.objects()[-1])
        self.assertTrue(self.server.idle())

    def test_every_stream_says_how_it_ended(self):  # bug class 8
        for prompt in ("a", "{stop}", "a {length}", "{length}", "a {ms:30}{error:x}", "{repeat:20: a}"):
            response = self.stream(prompt) if "error" in prompt else self.stream(prompt, max_tokens=5)
            last = response.objects()[-1]
            self.assertTrue("error" in last or last["choices"][0]["finish_reason"] in ("stop", "length"), last)

    def test_bad_requests_are_refused_before_the_stream(self):  # bug class 7
        for fields in ({"n": 0}, {"temperature": -1}, {"suffix": "x"}, {"model": "none"}):
            response = self.server.complete("a", stream=True, **fields)
            self.assertIn(response.status, (400, 404))
            self.assertEqual(response.headers["content-type"].split(";")[0], "application/json")

    def test_http_1_0_has_no_chunks(self):
        body = json.dumps({"prompt": "a {ms:20} b", "stream": True}).encode()
        with self.server.client() as client:
            client.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            response = client.response()
        self.assertEqual(response.status, 200)
        self.assertNotIn("transfer-encoding", response.headers)
        self.assertEqual(self.text(response), "a b")
        self.assertEqual(response.events()[-1], "[DONE]")

    def test_the_connection_serves_on(self):
        with self.server.client() as client:
            for _ in range(3):
                client.send(harness.completion("a {ms:10} b", stream=True))
                self.assertEqual(self.text(client.response()), "a b")

    def test_a_reader_that_pauses_loses_nothing(self):
        count = 20000
        with harness.Server("--max-context", "1000000") as server, server.client(receive_bytes=4096) as client:
            client.send(harness.completion("{every-us:20}{repeat:%d: word}" % count, stream=True, max_tokens=count + 9,
                                           stream_options={"include_usage": True}))
            self.assertEqual(client.head().status, 200)
            time.sleep(1)
            body = b""
            while chunk := client.chunk():
                body += chunk
        objects = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
        text = "".join(choice["text"] for chunk in objects for choice in chunk["choices"])
        self.assertEqual(text, " word" * count)
        self.assertEqual(objects[-1]["usage"]["completion_tokens"], count)
