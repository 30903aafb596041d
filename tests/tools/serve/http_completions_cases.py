"""POST /v1/completions without streams."""
import struct

import serve_harness as harness
from http_endpoints_cases import WithServer


def mix(value):
    value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15 % 2**64
    return value ^ (value >> 29)


def stub_logprob(token, position):
    """What the stub engine says, as the 4 bytes of a float."""
    return struct.pack("f", -(mix((mix(token + 1) + position) % 2**64) % 99991) / 9973)


class Completions(WithServer):
    def text(self, prompt, **fields):
        response = self.server.complete(prompt, **fields)
        self.assertEqual(response.status, 200, response.body)
        return response.json()["choices"][0]["text"]

    def test_shape(self):
        response = self.server.complete("one two three")
        self.assertEqual(response.headers["content-type"].split(";")[0], "application/json")
        answer = response.json()
        self.assertTrue(answer["id"].startswith("cmpl-"))
        self.assertEqual(answer["object"], "text_completion")
        self.assertIsInstance(answer["created"], int)
        self.assertEqual(answer["model"], "tiny-model")
        (choice,) = answer["choices"]
        self.assertEqual((choice["index"], choice["text"], choice["finish_reason"]), (0, "one two three", "stop"))
        self.assertIsNone(choice["logprobs"])
        usage = answer["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (4, 3, 7))

    def test_lengths(self):
        self.assertEqual(len(self.text("{repeat:100: a}", max_tokens=None).split()), 16)  # OpenAI's default
        choice = self.server.complete("a b c d", max_tokens=2).json()["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("a b", "length"))
        self.assertEqual(self.text("a", min_tokens=3), "a more more")
        choice = self.server.complete("a", ignore_eos=True, max_tokens=4).json()["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("a more more more", "length"))

    def test_prompts_of_each_kind(self):
        self.assertEqual(self.text(["a b"]), "a b")
        self.assertEqual(self.text(list(b"xyz")), "xyz")
        answer = self.server.complete(["a", "b", "c"]).json()
        self.assertEqual([(c["index"], c["text"]) for c in answer["choices"]], [(0, "a"), (1, "b"), (2, "c")])
        answer = self.server.complete([list(b"ab"), list(b"cd")], n=2).json()
        self.assertEqual([(c["index"], c["text"]) for c in answer["choices"]],
                         [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")])
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        self.assertEqual(self.server.complete(list(b"xyz")).json()["usage"]["prompt_tokens"], 3)  # no bos is added

    def test_prompt_order_does_not_depend_on_who_is_first(self):
        answer = self.server.complete(["{ms:200} slow", "fast"]).json()
        self.assertEqual([c["text"] for c in answer["choices"]], [" slow", "fast"])

    def test_choices_have_seeds_of_their_own(self):  # bug class 24
        texts = [c["text"] for c in self.server.complete("{seed}", n=3, seed=5).json()["choices"]]
        self.assertEqual(texts, [" 5", " 6", " 7"])
        texts = [c["text"] for c in self.server.complete(["{seed}", "{seed}"], n=2, seed=5).json()["choices"]]
        self.assertEqual(texts, [" 5", " 6", " 5", " 6"])
        self.assertEqual(len({self.text("{seed}") for _ in range(4)}), 4)  # none is constant
        self.assertEqual(self.text("{seed}", seed=None) == self.text("{seed}", seed=None), False)

    def test_choices_are_one_request_of_the_engine(self):
        counted = self.server.metric("vllm:prompt_tokens_total")
        answer = self.server.complete(["a{field:n}", "b c{field:n}"], n=3).json()
        self.assertEqual([c["text"] for c in answer["choices"]], ["a n=3"] * 3 + ["b c n=3"] * 3)
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(6)))
        # A prompt is computed once, whatever n is.
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total") - counted, answer["usage"]["prompt_tokens"])
        self.assertEqual(answer["usage"]["completion_tokens"], 2 * 3 + 3 * 3)
        with self.server.client() as client:
            client.send(harness.completion("a {wait}", n=3))
            self.assertTrue(harness.eventually(lambda: self.server.metric("vllm:num_requests_running") == 3))
            self.assertEqual(self.server.ask("GET", "/health").json()["requests_running"], 1)
        self.assertTrue(self.server.idle())

    def test_choices_that_end_apart(self):
        answer = self.server.complete("{seed} a b", n=3, seed=5, stop=" 6 a").json()
        self.assertEqual([(c["text"], c["stop_reason"]) for c in answer["choices"]],
                         [(" 5 a b", None), ("", " 6 a"), (" 7 a b", None)])
        with harness.Server("--stub-max-choices", "4", "--max-sequences", "2") as server:
            answer = server.complete("{seed}{repeat:20: a}", n=4, seed=1).json()  # two wait until others have ended
            self.assertEqual([c["text"] for c in answer["choices"]], [f" {k}" + " a" * 20 for k in (1, 2, 3, 4)])
            message = self.assert_error(server.complete("a", n=5), 400, param="n")
            self.assertIn("5 is not in [1, 4]", message)

    def test_the_prompts_logprobs_are_those_of_all_choices(self):
        fields = {"echo": True, "logprobs": 1, "seed": 3}
        one = self.server.complete([list(b"abc"), list(b"de")], **fields).json()["choices"]
        for max_tokens in (1000, 0):
            several = self.server.complete([list(b"abc"), list(b"de")], n=3, max_tokens=max_tokens, **fields).json()["choices"]
            self.assertEqual(len(several), 6)
            for i, choice in enumerate(several):
                length = (3, 2)[i // 3]
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    self.assertEqual(choice["logprobs"][name][:length], one[i // 3]["logprobs"][name][:length], name)
                    self.assertEqual(len(choice["logprobs"][name]), length + (1 if max_tokens else 0))

    def test_tokens_that_others_had_computed(self):
        def cached(prompt, **fields):
            return self.server.complete(prompt, **fields).json()["usage"]["prompt_tokens_details"]
        self.assertEqual(cached("a b"), {"cached_tokens": 0})
        before = [self.server.metric(name) for name in (
            "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "fastdecode_prefix_cache_hits_total")]
        self.assertEqual(cached("{cached:3} a b"), {"cached_tokens": 3})
        # Of each prompt once, whatever n is.
        self.assertEqual(cached(["{cached:3} a b", "c", "{cached:2} d"], n=4), {"cached_tokens": 5})
        self.assertEqual(cached("{cached:3} a b", prefix_cache=False), {"cached_tokens": 0})
        queries, hits, by_home = [now - then for now, then in zip([self.server.metric(name) for name in (
            "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "fastdecode_prefix_cache_hits_total")], before)]
        self.assertEqual((hits, by_home), (8, 8))
        self.assertGreater(queries, hits)
        fields = {"prefix_cache": False, "cache_salt": "somebody"}
        self.assertEqual(self.text("{field:no_prefix_cache}{field:cache_salt}", **fields), " no_prefix_cache=1 cache_salt=somebody")
        self.assertEqual(self.text("{field:no_prefix_cache}{field:cache_salt}"), " no_prefix_cache=0 cache_salt=")

    def test_best_of(self):
        self.assertEqual(self.server.complete("a", best_of=1).status, 200)
        self.assertEqual(self.server.complete("a", n=2, best_of=2).status, 200)
        self.assert_error(self.server.complete("a", n=1, best_of=2), 400, param="best_of")

    def test_null_is_absent(self):  # bug class 7: a client's explicit nulls are no mistake
        names = ["n", "best_of", "echo", "logprobs", "stream", "stream_options", "stop", "seed", "temperature", "top_p",
                 "presence_penalty", "frequency_penalty", "logit_bias", "user", "suffix", "top_k", "min_p",
                 "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "include_stop_str_in_output",
                 "skip_special_tokens", "return_token_ids", "model", "max_tokens", "response_format", "prefix_cache",
                 "cache_salt"]
        self.assertEqual(self.text("a b", **{name: None for name in names}), "a b")

    def test_integers_may_be_written_as_floats(self):
        self.assertEqual(self.text("a b c", max_tokens=2.0), "a b")
        self.assert_error(self.server.complete("a", max_tokens=2.5), 400, param="max_tokens")

    def test_sampling_fields_reach_the_engine(self):
        fields = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.5,
                  "presence_penalty": 0.25, "frequency_penalty": -0.25, "min_tokens": 2, "max_tokens": 99}
        prompt = "".join("{field:%s}" % name for name in fields)
        expected = "".join(f" {name}={value:g}" for name, value in fields.items())
        self.assertEqual(self.text(prompt, **fields), expected)
        bias = {"97": 5, "98": -100}
        self.assertEqual(self.text("{field:logit_bias_count}", logit_bias=bias), " logit_bias_count=2")
        self.assertEqual(self.text("{field:show_special}", skip_special_tokens=False), " show_special=1")

    def test_unknown_fields_are_ignored(self):
        self.assertEqual(self.text("a", store=True, metadata={"a": [1]}, nobody_knows={"x": None}), "a")

    def test_stops(self):  # bug class 12
        answer = self.server.complete("one two three", stop="o th").json()["choices"][0]
        self.assertEqual((answer["text"], answer["finish_reason"]), ("one tw", "stop"))
        self.assertEqual(answer["stop_reason"], "o th")
        self.assertEqual(self.text("one two three", stop=["zzz", " three"]), "one two")
        self.assertEqual(self.text("one two three", stop="wo", include_stop_str_in_output=True), "one two")
        self.assertEqual(self.text("one two thr", stop="three"), "one two thr")  # the tail that was held back
        answer = self.server.complete("a b c", stop_token_ids=[98]).json()["choices"][0]
        self.assertEqual(answer["text"], "a b c")
        answer = self.server.complete("a {id:98} c", stop_token_ids=[98]).json()["choices"][0]
        self.assertEqual((answer["text"], answer["finish_reason"], answer["stop_reason"]), ("a", "stop", 98))

    def test_echo(self):
        self.assertEqual(self.text("a b", echo=True), "a ba b")
        self.assertEqual(self.text(list(b"xy"), echo=True), "xyxy")
        answer = self.server.complete("a b", echo=True, max_tokens=0).json()
        self.assertEqual(answer["choices"][0]["text"], "a b")
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 0)

    def check_logprobs(self, logprobs, tokens, first_position, width):
        """`tokens`: their ids."""
        self.assertEqual(len(logprobs["tokens"]), len(tokens))
        self.assertEqual(len(logprobs["token_logprobs"]), len(tokens))
        self.assertEqual(len(logprobs["text_offset"]), len(tokens))
        for i, token in enumerate(tokens):
            if i == 0 and first_position == 0:
                self.assertIsNone(logprobs["token_logprobs"][0])
                self.assertIsNone(logprobs["top_logprobs"][0])
                continue
            value = logprobs["token_logprobs"][i]
            self.assertEqual(struct.pack("f", value), stub_logprob(token, first_position + i), "an exact float")
            top = logprobs["top_logprobs"][i]
            # lm-eval: the chosen token is in the list, and greedy is told by equality.
            self.assertEqual(top[logprobs["tokens"][i]], value)
            self.assertEqual(value == max(top.values()), (first_position + i) % 3 != 2)
            self.assertGreaterEqual(len(top), width)
            self.assertLessEqual(len(top), width + 1)

    def test_logprobs(self):
        answer = self.server.complete(list(b"abcdef"), logprobs=3).json()["choices"][0]
        # The stub's words are tokens of their own, so the answer is one: "abcdef".
        self.assertEqual(answer["logprobs"]["tokens"], ["abcdef"])
        answer = self.server.complete("a b c d", logprobs=2).json()["choices"][0]
        logprobs = answer["logprobs"]
        self.assertEqual(logprobs["tokens"], ["a", " b", " c", " d"])
        self.assertEqual(logprobs["text_offset"], [0, 1, 3, 5])
        ids = self.server.ask("POST", "/tokenize", {"prompt": "a b c d"}).json()["tokens"]
        self.check_logprobs(logprobs, ids[1:], len(ids), 2)
        none = self.server.complete("a b", logprobs=0).json()["choices"][0]["logprobs"]
        self.assertEqual(len(none["token_logprobs"]), 2)

    def test_prompt_logprobs(self):  # bug class 15
        prompt = list(b"abcdefgh")
        fields = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}  # lm-eval's
        choice = self.server.complete([prompt], **fields).json()["choices"][0]
        generated = self.server.ask("POST", "/tokenize", {"prompt": "abcdefgh", "add_special_tokens": False}).json()
        self.check_logprobs(choice["logprobs"], prompt + generated["tokens"], 0, 1)
        self.assertEqual(choice["text"], "abcdefghabcdefgh")
        choice = self.server.complete(prompt, **{**fields, "max_tokens": 0}).json()["choices"][0]
        self.check_logprobs(choice["logprobs"], prompt, 0, 1)

    def test_logprobs_of_a_batch_are_in_order(self):
        prompts = [list(b"abc"), list(b"defgh"), list(b"i")]
        answer = self.server.complete(prompts, max_tokens=1, echo=True, logprobs=1).json()
        for i, (prompt, choice) in enumerate(zip(prompts, answer["choices"])):
            self.assertEqual(choice["index"], i)
            self.assertEqual(choice["logprobs"]["tokens"][:len(prompt)], [chr(byte) for byte in prompt])

    def test_tokens_that_are_no_text_have_names_of_their_own(self):  # bug class 11, 15
        choice = self.server.complete("{bytes:e2}{bytes:82}{bytes:ac}", logprobs=1).json()["choices"][0]
        self.assertEqual(choice["text"], "\u20ac")
        names = choice["logprobs"]["tokens"]
        self.assertEqual(len(set(names)), 3, names)

    def test_no_tokens_at_all(self):
        choice = self.server.complete("{stop}").json()["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("", "stop"))

    def test_zero_bytes_and_all_of_unicode(self):
        text = "a\u0000b \u0085 \u2028 \U0010FFFF \"\\/\b"
        self.assertEqual(self.text(text), text)

    def test_return_token_ids(self):
        choice = self.server.complete(list(b"xy"), return_token_ids=True).json()["choices"][0]
        self.assertEqual(choice["prompt_token_ids"], list(b"xy"))
        self.assertEqual(len(choice["token_ids"]), 1)

    def test_an_engines_error_is_a_status(self):  # bug class 7
        for prompt in ("{error:home b is lost}", "a b {error:home b is lost}"):
            self.assertGreaterEqual(self.server.complete(prompt).status, 500)
            self.assert_error(self.server.complete(prompt), self.server.complete(prompt).status)
        self.assert_error(self.server.complete(["a", "{error:gone}"]), 500)
        self.assertTrue(self.server.idle())

    def test_many_at_once(self):
        clients = [self.server.client() for _ in range(60)]
        for i, client in enumerate(clients):
            client.send(harness.completion("{every:5} w%d{repeat:20: x}" % i))
        for i, client in enumerate(clients):
            self.assertEqual(client.response().json()["choices"][0]["text"], " w%d" % i + " x" * 20)
            client.close()
