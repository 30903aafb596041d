#!/usr/bin/env python3
"""openai-python against `fastdecode serve` with the demo model.

usage: openai_client_test.py PROGRAM [unittest arguments, such as Errors or Streams.test_usage]
It runs under the Python of build/clients (tools/setup --clients); where there is none it says so and exits with 77.
Every answer and chunk is validated by openai's own types, which its client does not do.
"""
import asyncio
import json
import signal
import sys
import unittest

import demo_server
from demo_server import DemoServer, LIMIT_S, PromptLogprobs, as_float, eventually, generate

demo_server.run_under("clients", "openai")

import openai  # noqa: E402
from openai.types import Completion, Model  # noqa: E402

NAME, ALIAS, KEY = "demo", "demo-too", "sk-clients"
PROMPT = "Once upon a time"
PROMPTS = [PROMPT, "One day", "There was a"]
SERVER = None  # without keys


def setUpModule():
    global SERVER
    SERVER = DemoServer("--served-model-name", NAME, ALIAS)
    unittest.addModuleCleanup(SERVER.kill)


def tearDownModule():
    SERVER.stop()


def client(server=None, key="none", kind=openai.OpenAI, **more):
    return kind(base_url=(server or SERVER).url + "/v1", api_key=key, timeout=LIMIT_S, max_retries=0, **more)


def validated(answer, echoed=False, finished=True):
    """An answer or chunk as a dict, after openai's types have found nothing wrong with it but two things that every server
    says: null as the first log-probabilities of an echoed prompt, and as finish_reason before the end."""
    said = answer.to_dict()
    judged = json.loads(json.dumps(said))
    for choice in judged["choices"]:
        if not finished and choice["finish_reason"] is None:
            choice["finish_reason"] = "stop"
        logprobs = choice["logprobs"]
        if echoed and logprobs and logprobs["token_logprobs"] and logprobs["token_logprobs"][0] is None:
            logprobs["token_logprobs"][0] = 0.0
            if logprobs["top_logprobs"][0] is not None:
                raise AssertionError("the first token has no logprob, but top_logprobs")
            logprobs["top_logprobs"][0] = {}
    Completion.model_validate_json(json.dumps(judged), strict=True)
    return said


class ClientTest(unittest.TestCase):
    maxDiff = None

    def complete(self, prompt=PROMPT, server=None, **more):
        """An answer that is not streamed."""
        with client(server) as made:
            answer = made.completions.create(**{"model": NAME, "prompt": prompt, "temperature": 0, **more})
        return validated(answer, echoed=more.get("echo"))

    def text(self, prompt=PROMPT, **more):
        said = self.complete(prompt, **more)
        self.assertEqual(len(said["choices"]), 1)
        return said["choices"][0]["text"]

    def stream(self, prompt=PROMPT, **more):
        """The chunks of a stream, and what they add up to: {index: (text, finish_reason)}."""
        with client() as made:
            chunks = [validated(chunk, echoed=more.get("echo"), finished=False) for chunk in made.completions.create(
                **{"model": NAME, "prompt": prompt, "temperature": 0, "stream": True, **more})]
        return chunks, self.joined(chunks)

    def joined(self, chunks):
        self.assertEqual(len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}), 1)
        texts, ended = {}, {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                self.assertNotIn(choice["index"], ended, "a choice goes on after its end")
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                if choice["finish_reason"] is not None:
                    ended[choice["index"]] = choice["finish_reason"]
        self.assertEqual(texts.keys(), ended.keys(), "a choice has no end")
        return {index: (texts[index], ended[index]) for index in texts}


# -------------------------------------------------------------------------------------------------------------- answers


class Models(ClientTest):
    def test_list(self):
        with client() as made:
            models = [model.to_dict() for model in made.models.list()]
        self.assertEqual([model["id"] for model in models], [NAME, ALIAS])
        for model in models:
            Model.model_validate_json(json.dumps(model), strict=True)
            self.assertEqual(model["max_model_len"], 512)
            self.assertEqual(model["root"], str(demo_server.MODEL))

    def test_retrieve(self):
        with client() as made:
            self.assertEqual(made.models.retrieve(ALIAS).id, ALIAS)

    def test_answers_say_the_name_that_was_asked_for(self):
        self.assertEqual(self.complete(model=ALIAS, max_tokens=1)["model"], ALIAS)


class Answers(ClientTest):
    def test_text_is_that_of_generate(self):
        flags = ["-n", 40, "-p", PROMPTS[0], "-p", PROMPTS[1]]
        greedy = generate("--temp", 0, *flags)
        sampled = generate("--temp", 0.9, "--top-p", 0.9, "--top-k", 50, "--repetition-penalty", 1.1, "--seed", 7, *flags)
        for i in range(2):
            said = self.complete(PROMPTS[i], max_tokens=40)["choices"][0]
            self.assertEqual((said["text"], said["finish_reason"]), (greedy[i]["text"], greedy[i]["finish_reason"]))
            said = self.complete(PROMPTS[i], max_tokens=40, temperature=0.9, top_p=0.9, seed=7 + i,
                                 extra_body={"top_k": 50, "repetition_penalty": 1.1})["choices"][0]
            self.assertEqual((said["text"], said["finish_reason"]), (sampled[i]["text"], sampled[i]["finish_reason"]))

    def test_what_the_makers_recommend_and_16_tokens_are_the_defaults(self):
        expected = generate("-p", PROMPT, "-n", 16, "--seed", 3)[0]
        with client() as made:
            said = validated(made.completions.create(model=NAME, prompt=PROMPT, seed=3))
        self.assertEqual(said["choices"][0]["text"], expected["text"])

    def test_usage(self):
        said = self.complete(PROMPTS, max_tokens=5, n=2, best_of=2)
        prompt_tokens = sum(len(SERVER.tokenize(prompt)) for prompt in PROMPTS)
        self.assertEqual(said["usage"]["prompt_tokens"], prompt_tokens)
        self.assertEqual(said["usage"]["completion_tokens"], 5 * 2 * 3)
        self.assertEqual(said["usage"]["total_tokens"], prompt_tokens + 30)

    def test_a_story_ends_by_itself(self):
        said = self.complete(max_tokens=450)["choices"][0]
        self.assertEqual(said["finish_reason"], "stop")
        self.assertIsNone(said["stop_reason"])

    def test_prompts_have_their_indexes(self):
        said = self.complete(PROMPTS, n=2, max_tokens=3, echo=True, temperature=1, seed=1)
        self.assertEqual([choice["index"] for choice in said["choices"]], list(range(6)))
        for choice in said["choices"]:
            self.assertTrue(choice["text"].startswith(PROMPTS[choice["index"] // 2]), choice)

    def test_token_ids_are_the_same_prompts(self):
        ids = [SERVER.tokenize(prompt) for prompt in PROMPTS]
        texts = [choice["text"] for choice in self.complete(PROMPTS, max_tokens=8)["choices"]]
        self.assertEqual([choice["text"] for choice in self.complete(ids, max_tokens=8)["choices"]], texts)
        self.assertEqual(self.text(ids[0], max_tokens=8), texts[0])

    def test_seeds(self):
        hot = {"temperature": 1.5, "max_tokens": 12}
        several = [choice["text"] for choice in self.complete(n=4, seed=11, **hot)["choices"]]
        self.assertEqual([self.text(seed=11 + k, **hot) for k in range(4)], several)
        self.assertGreater(len(set(several)), 1)
        # Without a seed, each request has one of its own.
        self.assertGreater(len({self.text(**hot) for _ in range(4)}), 1)

    def test_stop_strings(self):
        whole = self.text(max_tokens=60)
        self.assertIn(".", whole)
        for stop in (".", ["never there", "."]):
            said = self.complete(max_tokens=60, stop=stop)["choices"][0]
            self.assertEqual(said["text"], whole[:whole.index(".")])
            self.assertEqual((said["finish_reason"], said["stop_reason"]), ("stop", "."))
        said = self.complete(max_tokens=60, stop=["."], extra_body={"include_stop_str_in_output": True})["choices"][0]
        self.assertEqual(said["text"], whole[:whole.index(".") + 1])

    def test_logit_bias(self):
        banned = SERVER.tokenize(self.text(max_tokens=1), special=False)[-1]
        said = self.complete(max_tokens=1, logit_bias={str(banned): -100}, extra_body={"return_token_ids": True})
        self.assertNotEqual(said["choices"][0]["token_ids"], [banned])
        self.assertEqual(self.text(max_tokens=3, logit_bias={str(banned): 100}), SERVER.detokenize([banned] * 3))


class Logprobs(ClientTest):
    def check_names(self, logprobs):
        """The tokens of a choice are as many in all lists, and one after the other."""
        tokens = logprobs["tokens"]
        self.assertEqual({len(each) for each in logprobs.values()}, {len(tokens)})
        self.assertEqual(logprobs["text_offset"], [len("".join(tokens[:i])) for i in range(len(tokens))])

    def test_floats_are_those_of_generate(self):
        expected = generate("-p", PROMPT, "-n", 20, "--temp", 0.8, "--seed", 5, "--logprobs", 4)[0]
        said = self.complete(max_tokens=20, temperature=0.8, seed=5, logprobs=4)["choices"][0]
        self.assertEqual(said["text"], expected["text"])
        logprobs = said["logprobs"]
        self.check_names(logprobs)
        self.assertEqual("".join(logprobs["tokens"]), said["text"])
        names = {}
        for entry in expected["logprobs"]:
            for token in [entry["token"], *(top["token"] for top in entry["top"])]:
                names[token] = names.get(token) or SERVER.detokenize([token])
        for i, entry in enumerate(expected["logprobs"]):
            self.assertEqual(logprobs["tokens"][i], names[entry["token"]])
            self.assertEqual(as_float(logprobs["token_logprobs"][i]), as_float(entry["logprob"]))
            top = {names[each["token"]]: as_float(each["logprob"]) for each in entry["top"]}
            top[names[entry["token"]]] = as_float(entry["logprob"])
            self.assertEqual({name: as_float(value) for name, value in logprobs["top_logprobs"][i].items()}, top)

    def test_echo(self):
        ids = SERVER.tokenize("Once upon a time there was a cat named Tom.")
        said = self.complete(ids, max_tokens=4, echo=True, logprobs=2)["choices"][0]
        logprobs = said["logprobs"]
        self.check_names(logprobs)
        self.assertEqual(len(logprobs["tokens"]), len(ids) + 4)
        self.assertEqual([logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]], [None, None])
        expected = PromptLogprobs(ids)
        for i in range(1, len(ids)):
            value, top = logprobs["token_logprobs"][i], logprobs["top_logprobs"][i]
            self.assertAlmostEqual(value, expected.of_token(i), delta=expected.tolerance(i))
            self.assertAlmostEqual(max(top.values()), expected.best(i), delta=expected.tolerance(i))
            # Clients ask by equality of floats whether a token is the most likely one.
            self.assertEqual(value == max(top.values()), expected.is_greedy(i))
        # The answer's own are those that it has without the prompt.
        alone = self.complete(ids, max_tokens=4, logprobs=2)["choices"][0]["logprobs"]
        self.assertEqual(logprobs["token_logprobs"][len(ids):], alone["token_logprobs"])
        self.assertEqual(logprobs["top_logprobs"][len(ids):], alone["top_logprobs"])

    def test_echo_of_text(self):
        said = self.complete(PROMPT, max_tokens=2, echo=True, logprobs=0)["choices"][0]
        self.assertEqual(said["text"], PROMPT + self.text(max_tokens=2))
        said = self.complete(PROMPT, max_tokens=0, echo=True, logprobs=0)
        self.assertEqual(said["choices"][0]["text"], PROMPT)
        self.assertEqual(len(said["choices"][0]["logprobs"]["tokens"]), len(SERVER.tokenize(PROMPT)))
        self.assertEqual(said["usage"]["completion_tokens"], 0)

    def test_streamed_they_are_the_same(self):
        whole = self.complete(max_tokens=12, logprobs=3, echo=True)["choices"][0]
        chunks, joined = self.stream(max_tokens=12, logprobs=3, echo=True)
        self.assertEqual(joined[0], (whole["text"], whole["finish_reason"]))
        for key in whole["logprobs"]:
            self.assertEqual([x for chunk in chunks for x in chunk["choices"][0]["logprobs"][key]], whole["logprobs"][key])


# -------------------------------------------------------------------------------------------------------------- streams


class Streams(ClientTest):
    def test_chunks_add_up_to_the_answer(self):
        for more in ({"max_tokens": 30}, {"max_tokens": 60, "stop": ["."]}, {"max_tokens": 6, "echo": True},
                     {"max_tokens": 20, "n": 3, "temperature": 1.2, "seed": 9}):
            with self.subTest(**more):
                whole = self.complete(PROMPTS, **more)
                expected = {c["index"]: (c["text"], c["finish_reason"]) for c in whole["choices"]}
                self.assertEqual(self.stream(PROMPTS, **more)[1], expected)

    def test_each_token_has_a_chunk(self):
        chunks, joined = self.stream(max_tokens=10, extra_body={"return_token_ids": True})
        self.assertEqual(joined[0][1], "length")
        counts = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
        self.assertEqual(sum(counts), 10)
        self.assertLessEqual(max(counts), 10)

    def test_usage(self):
        expected = self.complete(PROMPTS, max_tokens=5)["usage"]
        chunks, _ = self.stream(PROMPTS, max_tokens=5, stream_options={"include_usage": True})
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"], expected)
        for chunk in chunks[:-1]:
            self.assertTrue(chunk["choices"])
            self.assertIsNone(chunk["usage"])
        chunks, _ = self.stream(PROMPTS, max_tokens=5)
        for chunk in chunks:
            self.assertTrue(chunk["choices"])
            self.assertNotIn("usage", chunk)


class Async(ClientTest):
    def test_32_streams_at_once(self):
        prompts = [f"{PROMPTS[i % 3]} {'very ' * (i // 3)}" for i in range(32)]

        async def ask(made, i):
            if i % 4 == 3:
                answer = await made.completions.create(model=NAME, prompt=prompts[i], temperature=0, max_tokens=24)
                return validated(answer)["choices"][0]["text"]
            chunks = []
            async for chunk in await made.completions.create(model=NAME, prompt=prompts[i], temperature=0, max_tokens=24,
                                                             stream=True):
                chunks.append(validated(chunk, finished=False))
            return self.joined(chunks)[0][0]

        async def ask_all():
            async with client(kind=openai.AsyncOpenAI) as made:
                return await asyncio.gather(*(ask(made, i) for i in range(32)))

        expected = [choice["text"] for choice in self.complete(prompts, max_tokens=24)["choices"]]
        self.assertEqual(asyncio.run(ask_all()), expected)

    def test_a_cancelled_task_is_cancelled_in_the_engine(self):
        async def ask():
            async with client(kind=openai.AsyncOpenAI) as made:
                async with await made.completions.create(model=NAME, prompt=PROMPT, max_tokens=450, stream=True,
                                                         extra_body={"ignore_eos": True}) as stream:
                    async for _ in stream:
                        break
        asyncio.run(ask())
        self.assertTrue(SERVER.idle())


# --------------------------------------------------------------------------------------------------------------- errors


class Errors(ClientTest):
    def refused(self, kind, status, param, code, needle, **more):
        """The error that a request gets."""
        with client() as made, self.assertRaises(kind) as caught:
            made.completions.create(**{"model": NAME, "prompt": PROMPT, **more})
        error = caught.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.status_code, error.param, error.code), (status, param, code), error.message)
        self.assertIn(needle, error.message)
        self.assertTrue(error.request_id)
        return error

    def bad(self, param, needle, code=None, **more):
        error = self.refused(openai.BadRequestError, 400, param, code, needle, **more)
        self.assertEqual(error.type, "invalid_request_error")

    def test_bad_requests_name_their_field(self):
        self.bad("top_p", "2", top_p=2)
        self.bad("best_of", "3", n=2, best_of=3)
        self.bad("suffix", "suffix", suffix="the end")
        self.bad("logprobs", "99", logprobs=99)
        self.bad("prompt", "prompt[1]", prompt=["a", 1])
        self.bad("prompt", "1024", prompt=[1024])
        self.bad("response_format", "response_format", extra_body={"response_format": {"type": "json_object"}})
        self.bad("stream_options", "stream", stream_options={"include_usage": True})

    def test_too_long(self):
        self.bad("max_tokens", "512", "context_length_exceeded", max_tokens=510)
        self.bad("prompt", "512", "context_length_exceeded", prompt=[5] * 600)

    def test_a_stream_that_is_refused_has_a_status(self):
        self.bad("top_p", "2", top_p=2, stream=True)

    def test_unknown_model(self):
        self.refused(openai.NotFoundError, 404, "model", "model_not_found", "nope", model="nope")
        with client() as made, self.assertRaises(openai.NotFoundError) as caught:
            made.models.retrieve("nope")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_what_there_is_not(self):
        with client() as made, self.assertRaises(openai.NotFoundError) as caught:
            made.embeddings.create(model=NAME, input="a")
        self.assertEqual(caught.exception.code, "unknown_path")
        self.assertIn("/v1/embeddings", caught.exception.message)

    def test_request_ids_are_the_clients(self):
        with client() as made:
            answer = made.completions.create(model=NAME, prompt=PROMPT, max_tokens=1,
                                             extra_headers={"X-Request-Id": "mine-1"})
        self.assertEqual(answer._request_id, "mine-1")
        self.assertEqual(answer.id, "cmpl-mine-1")


class SlowServer(ClientTest):
    """A server with a key, of one sequence at a time and 20 ms a token."""

    HEADERS = {"Authorization": f"Bearer {KEY}"}
    LONG = {"model": NAME, "prompt": PROMPT, "max_tokens": 450, "stream": True, "extra_body": {"ignore_eos": True}}

    def setUp(self):
        keys = demo_server.SCRATCH / "keys"
        keys.write_text(f"tests:{KEY}\n")
        keys.chmod(0o600)
        self.server = DemoServer("--served-model-name", NAME, "--api-key-file", keys, "--max-queued-requests", 1,
                                 "--grace-s", 0, "--fault", "delay=1:5ms", sequences=1)
        self.addCleanup(self.server.kill)
        self.client = client(self.server, KEY)
        self.addCleanup(self.client.close)

    def metric(self, name, **labels):
        return self.server.metric(name, self.HEADERS, **labels)

    def begin(self):
        """A stream whose first token has come."""
        stream = self.client.completions.create(**self.LONG)
        self.addCleanup(stream.close)
        next(iter(stream))
        return stream

    def test_wrong_keys(self):
        for key in ("none", "sk-client", KEY + "x"):
            with client(self.server, key) as made, self.assertRaises(openai.AuthenticationError) as caught:
                made.completions.create(model=NAME, prompt=PROMPT)
            error = caught.exception
            self.assertEqual((error.status_code, error.type, error.code), (401, "authentication_error", "invalid_api_key"))
            self.assertIn("Authorization", error.message)
        self.assertEqual(self.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=1).model, NAME)
        self.server.stop()

    def test_a_closed_stream_is_cancelled(self):
        stream = self.begin()
        self.assertEqual(self.metric("vllm:num_requests_running"), 1)
        stream.close()
        self.assertTrue(self.server.idle(self.HEADERS))
        self.assertLess(self.metric("vllm:generation_tokens_total"), 450)
        self.assertEqual(self.metric("vllm:request_success_total", finished_reason="abort"), 1)
        self.assertTrue(eventually(lambda: self.metric("fastdecode_home_kv_pages_used") == 0))
        self.server.stop()

    def test_a_full_queue(self):
        running = self.begin()
        waiting = self.client.with_options(timeout=LIMIT_S).completions.with_streaming_response
        with waiting.create(**self.LONG):
            self.assertTrue(eventually(lambda: self.metric("vllm:num_requests_waiting") == 1))
            with self.assertRaises(openai.InternalServerError) as caught:
                self.client.completions.create(model=NAME, prompt=PROMPT)
        error = caught.exception
        self.assertIsInstance(error, openai.APIStatusError)
        self.assertEqual((error.status_code, error.type), (503, "overloaded_error"))
        self.assertIn("The queue is full: 1 requests wait", error.message)
        self.assertGreaterEqual(int(error.response.headers["Retry-After"]), 1)
        running.close()
        self.assertTrue(self.server.idle(self.HEADERS))
        self.server.stop()

    def test_an_end_in_the_middle_is_an_error(self):
        stream = self.begin()
        self.server.process.send_signal(signal.SIGTERM)
        with self.assertRaises(openai.APIError) as caught:
            for _ in stream:
                pass
        self.assertIn("shut", caught.exception.message)
        self.server.stop()


if __name__ == "__main__":
    demo_server.PROGRAM = sys.argv.pop(1)
    unittest.main()
