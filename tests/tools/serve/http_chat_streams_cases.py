"""Streams of POST /v1/chat/completions."""
import json
import time

import serve_harness as harness
from http_chat_cases import THOUGHT, WithChat, joined


class ChatStreams(WithChat):
    def test_shape(self):
        response = self.stream("one {ms:20} two {ms:20} three")
        self.assertEqual(response.headers["content-type"].replace(" ", ""), "text/event-stream;charset=utf-8")
        self.assertFalse(response.cut)
        self.assertEqual(response.events()[-1], "[DONE]")
        chunks = response.objects()
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
        self.assertRegex(chunks[0]["id"], r"^chatcmpl-.")
        for chunk in chunks:
            self.assertEqual((chunk["object"], chunk["model"]), ("chat.completion.chunk", "tiny-model"))
            self.assertNotIn("usage", chunk)  # bug class 13: nobody has asked
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        # The end comes with the last token if the server hears of both at once.
        self.assertEqual([choice["delta"] for choice in choices if choice["delta"]],
                         [{"role": "assistant", "content": "one"}, {"content": " two"}, {"content": " three"}])
        self.assertEqual([choice["finish_reason"] for choice in choices], [None] * (len(choices) - 1) + ["stop"])

    def test_the_first_chunk_comes_with_the_first_token(self):
        with self.server.client() as client:
            client.send(harness.chat("{prefill:300} a {wait}", stream=True))
            began = time.monotonic()
            delta = json.loads(client.first_event())["choices"][0]["delta"]
            self.assertGreaterEqual(time.monotonic() - began, 0.25)
            self.assertEqual(delta, {"role": "assistant", "content": " a"})
        self.assertTrue(self.server.idle())

    def test_a_stream_says_what_an_answer_says(self):
        scripts = ["one two three", "{bytes:e282}{bytes:ac} {bytes:f09f9880}", "a {repeat:50: b}", "{bytes:ff} x {bytes:e2}",
                   "{stop}", THOUGHT, "<think>never ends {repeat:30: x}", "a<thi b</think> c <think>d</think>",
                   "{every:0}{repeat:300: q}"]
        for script in scripts:
            for more in ({}, {"stop": "b b b c"}, {"stop": ["two", "me s"]}, {"max_tokens": 2}, {"logprobs": True, "top_logprobs": 2},
                         {"n": 3}, {"include_reasoning": False}):
                whole = self.answer(script, seed=1, **more)
                response = self.stream(script, seed=1, stream_options={"include_usage": True}, **more)
                said = joined(response)
                self.assertEqual(len(said), len(whole["choices"]))
                for choice in whole["choices"]:
                    message, got = choice["message"], said[choice["index"]]
                    self.assertEqual(got["roles"], ["assistant"])
                    self.assertEqual(got["content"], message["content"] or "", (script, more))
                    self.assertEqual(got["reasoning"], message.get("reasoning", ""), (script, more))
                    self.assertEqual(got["reasoning_content"], got["reasoning"])
                    self.assertEqual(got["finish_reason"], choice["finish_reason"])
                    entries = [entry for chunk in response.objects() for part in chunk["choices"]
                               if part["index"] == choice["index"] and part["logprobs"] for entry in part["logprobs"]["content"]]
                    self.assertEqual(entries, choice["logprobs"]["content"] if choice["logprobs"] else [])
                self.assertEqual(response.objects()[-1]["usage"], whole["usage"])

    def test_usage(self):  # bug class 13
        response = self.stream(THOUGHT, stream_options={"include_usage": True})
        *chunks, last = response.objects()
        self.assertEqual(last["choices"], [])
        self.assertEqual(last["usage"]["completion_tokens"], 6)
        self.assertEqual(last["usage"]["completion_tokens_details"], {"reasoning_tokens": 3})
        for chunk in chunks:
            self.assertIsNone(chunk["usage"])
            self.assertNotEqual(chunk["choices"], [])
        response = self.stream("{every:20} a b", stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [chunk["usage"]["completion_tokens"] for chunk in response.objects()]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 2))

    def test_token_ids(self):
        response = self.stream("{every:20} a<th b", return_token_ids=True)
        first, *rest = response.objects()
        self.assertEqual(first["prompt_token_ids"], self.answer("{every:20} a<th b", return_token_ids=True)["prompt_token_ids"])
        self.assertTrue(all(chunk["prompt_token_ids"] is None for chunk in rest))
        ids = [id for chunk in [first, *rest] for id in chunk["choices"][0]["token_ids"]]
        self.assertEqual(self.server.ask("POST", "/detokenize", {"tokens": ids}).json()["prompt"], " a<th b")

    def test_stop_strings_are_never_shown(self):  # bug class 12
        response = self.stream("{every:10} one ST OP two", stop=[" ST OP"])
        self.assertEqual(joined(response)[0]["content"], " one")
        self.assertEqual(response.objects()[-1]["choices"][0]["stop_reason"], " ST OP")

    def test_what_clients_take_for_ends_of_lines_is_escaped(self):
        response = self.stream("<think>a\u2028b</think> {ms:1} c\u2029d \u0085 e\nf\rg")
        self.assertEqual(joined(response)[0]["content"], " c\u2029d \u0085 e\nf\rg")
        for forbidden in ("\u2028", "\u2029", "\u0085"):
            self.assertNotIn(forbidden, response.body.decode())

    def test_an_error_after_the_first_byte(self):  # bug classes 7 and 8
        response = self.stream("a {ms:50} b {ms:50}{error:home b is lost}")
        self.assertTrue(response.cut, "the body must not end as if all were well")
        *chunks, last = response.objects()
        self.assertEqual("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks), "a b")
        self.assertIn("home b is lost", last["error"]["message"])
        self.assertNotIn("[DONE]", response.events())
        self.assertTrue(self.server.idle())

    def test_every_stream_says_how_it_ended(self):  # bug class 8
        for script in ("a", "{stop}", "a {length}", "{length}", "<think>{length}", "<think>a</think>", "a {ms:30}{error:x}"):
            last = self.stream(script).objects()[-1]
            self.assertTrue("error" in last or last["choices"][0]["finish_reason"] in ("stop", "length"), last)

    def test_clients_that_go(self):  # bug classes 1, 2, 18
        def aborted():
            return self.server.metric("vllm:request_success_total", finished_reason="abort")
        for script in ("{queue:60000} a", "{prefill:60000} a", "a {wait}", "<think>a {wait}"):
            for stream in (False, True):
                before = aborted()
                client = self.server.client()
                client.send(harness.chat(script, n=3, stream=stream))
                state = "waiting" if "queue" in script else "running"
                self.assertTrue(harness.eventually(lambda: self.server.metric(f"vllm:num_requests_{state}") == 3))
                client.close()
                self.assertTrue(self.server.idle(), script)
                self.assertTrue(harness.eventually(lambda: aborted() == before + 1), script)

    def test_a_reader_that_pauses_loses_nothing(self):
        count = 20000
        with harness.Server("--max-context", "1000000") as server, server.client(receive_bytes=4096) as client:
            client.send(harness.chat("{every-us:20}<think>{repeat:%d: think}</think>{repeat:%d: word}" % (count, count), stream=True,
                                     stream_options={"include_usage": True}))
            self.assertEqual(client.head().status, 200)
            time.sleep(1)
            response = harness.Response("", 200, {})
            while chunk := client.chunk():
                response.body += chunk
        said = joined(response)[0]
        self.assertEqual(said["content"], " word" * count)
        self.assertEqual(said["reasoning"], " think" * count)
        self.assertEqual(response.events()[-1], "[DONE]")
