#!/usr/bin/env python3
"""Chats of openai-python and LangChain with `fastdecode serve` and the demo model.

usage: chat_clients_test.py PROGRAM [unittest arguments]
It runs under the Python of build/clients (tools/setup --clients); where there is none it says so and exits with 77.
The demo model has no chat template. It gets one that puts the messages one below the other, so that a chat's prompt is a
text, and its answer that of a completion. Answers and chunks are validated by openai's own types.
"""
import asyncio
import json
import sys
import unittest

import demo_server
from demo_server import DemoServer, LIMIT_S

demo_server.run_under("clients", "openai", "langchain_openai")

import langchain_openai  # noqa: E402
import openai  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage  # noqa: E402
from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402

NAME = "demo"
CONTEXT = 512
TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
            "{% if add_generation_prompt or not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}")
SYSTEM, USER = "A story.", "Once upon a time there was a cat"
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
PROMPT = f"{SYSTEM}\n{USER}\n"
SERVER = None


def setUpModule():
    global SERVER
    template = demo_server.SCRATCH / "lines.jinja"
    template.write_text(TEMPLATE)
    SERVER = DemoServer("--served-model-name", NAME, "--chat-template", template)
    unittest.addModuleCleanup(SERVER.kill)


def tearDownModule():
    SERVER.stop()


def client(kind=openai.OpenAI):
    return kind(base_url=SERVER.url + "/v1", api_key="none", timeout=LIMIT_S, max_retries=0)


def validated(answer, kind):
    """An answer or chunk as a dict, after openai's types have found nothing wrong with it."""
    said = answer.to_dict()
    kind.model_validate_json(json.dumps(said), strict=True)
    return said


def joined(chunks):
    """{index: (content, finish_reason)}"""
    texts, ended = {}, {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            if ("role" in delta) != (index not in texts):
                raise AssertionError("the first chunk of a choice has its role, and no other one")
            texts[index] = texts.get(index, "") + delta.get("content", "")
            if choice["finish_reason"]:
                ended[index] = choice["finish_reason"]
    return {index: (texts[index], ended[index]) for index in texts}


class ChatTest(unittest.TestCase):
    maxDiff = None

    def chat(self, messages=None, **more):
        with client() as made:
            answer = made.chat.completions.create(**{"model": NAME, "messages": messages or MESSAGES, "temperature": 0, **more})
        return validated(answer, ChatCompletion)

    def chunks(self, messages=None, **more):
        with client() as made:
            return [validated(chunk, ChatCompletionChunk) for chunk in made.chat.completions.create(
                **{"model": NAME, "messages": messages or MESSAGES, "temperature": 0, "stream": True, **more})]

    def complete(self, prompt=PROMPT, **more):
        with client() as made:
            return made.completions.create(**{"model": NAME, "prompt": prompt, "temperature": 0, **more}).to_dict()

    def texts(self, **more):
        """{index: (text, finish_reason)} of a completion of the same prompt."""
        return {choice["index"]: (choice["text"], choice["finish_reason"]) for choice in self.complete(**more)["choices"]}


# -------------------------------------------------------------------------------------------------------------- openai


class Answers(ChatTest):
    def test_they_are_those_of_completions(self):
        for more in ({"max_tokens": 30}, {"max_tokens": 60, "stop": ["."]}, {"max_tokens": 20, "n": 3, "seed": 9, "temperature": 1.2}):
            with self.subTest(**more):
                choices = self.chat(**more)["choices"]
                self.assertEqual({c["index"]: (c["message"]["content"], c["finish_reason"]) for c in choices}, self.texts(**more))
                for choice in choices:
                    self.assertEqual(choice["message"]["role"], "assistant")

    def test_both_names_of_lengths(self):
        self.assertEqual(self.chat(max_completion_tokens=5)["usage"]["completion_tokens"], 5)
        self.assertEqual(self.chat(max_completion_tokens=5, max_tokens=9)["usage"]["completion_tokens"], 5)
        self.assertEqual(self.chat(max_tokens=9)["usage"]["completion_tokens"], 9)

    def test_without_a_length_they_go_on(self):
        ids = SERVER.tokenize(PROMPT)
        whole = self.chat(extra_body={"ignore_eos": True})
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        self.assertEqual(whole["usage"]["total_tokens"], CONTEXT)
        self.assertEqual(whole["usage"]["prompt_tokens"], len(ids))
        self.assertEqual(whole["usage"]["completion_tokens_details"], {"reasoning_tokens": 0})

    def test_contents_in_parts(self):
        parts = [{"type": "text", "text": USER}]
        said = self.chat([MESSAGES[0], {"role": "user", "content": parts}], max_tokens=20)
        self.assertEqual(said["choices"][0]["message"]["content"], self.texts(max_tokens=20)[0][0])

    def test_a_message_that_is_continued(self):
        begun = [*MESSAGES, {"role": "assistant", "content": "The cat was"}]
        said = self.chat(begun, max_tokens=20, extra_body={"continue_final_message": True, "add_generation_prompt": False})
        expected = self.complete(PROMPT + "The cat was", max_tokens=20)["choices"][0]["text"]
        self.assertEqual(said["choices"][0]["message"]["content"], expected)

    def test_special_tokens_are_the_templates_alone(self):
        messages = [{"role": "user", "content": "<|begin|>a<|end|>"}]
        told = SERVER.json("/tokenize", {"messages": messages, "return_token_strs": True})
        self.assertEqual("".join(told["token_strs"]), "<|begin|><|begin|>a<|end|>\n")
        self.assertEqual((told["tokens"].count(0), told["tokens"].count(1)), (1, 0))
        self.assertEqual(self.chat(messages, max_tokens=1)["usage"]["prompt_tokens"], told["count"])

    def test_tokens_are_those_of_the_text(self):
        told = SERVER.json("/tokenize", {"messages": MESSAGES})
        self.assertEqual(told["tokens"], SERVER.tokenize(PROMPT))
        said = self.chat(max_tokens=4, extra_body={"return_token_ids": True})
        self.assertEqual(said["prompt_token_ids"], told["tokens"])
        self.assertEqual(len(said["choices"][0]["token_ids"]), 4)

    def test_logprobs(self):
        expected = self.complete(max_tokens=12, logprobs=3)["choices"][0]["logprobs"]
        logprobs = self.chat(max_tokens=12, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        self.assertEqual([entry["token"] for entry in logprobs], expected["tokens"])
        self.assertEqual([entry["logprob"] for entry in logprobs], expected["token_logprobs"])
        for entry, top in zip(logprobs, expected["top_logprobs"]):
            self.assertEqual(len(entry["top_logprobs"]), 3)
            for one in entry["top_logprobs"]:
                self.assertEqual(top[one["token"]], one["logprob"])
                if not one["token"].startswith("bytes:"):
                    self.assertEqual(bytes(one["bytes"]).decode(), one["token"])
        streamed = [entry for chunk in self.chunks(max_tokens=12, logprobs=True, top_logprobs=3) for choice in chunk["choices"]
                    if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        self.assertEqual(streamed, logprobs)

    def test_request_ids_are_the_clients(self):
        with client() as made:
            answer = made.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"})
        self.assertEqual((answer._request_id, answer.id), ("mine-1", "chatcmpl-mine-1"))


class Streams(ChatTest):
    def test_chunks_add_up_to_the_answer(self):
        for more in ({"max_tokens": 30}, {"max_tokens": 60, "stop": ["."]}, {"max_tokens": 20, "n": 3, "seed": 9, "temperature": 1.2}):
            with self.subTest(**more):
                chunks = self.chunks(**more)
                self.assertEqual(joined(chunks), self.texts(**more))
                self.assertEqual(len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}), 1)

    def test_usage(self):
        expected = self.chat(max_tokens=5)["usage"]
        *chunks, last = self.chunks(max_tokens=5, stream_options={"include_usage": True})
        self.assertEqual((last["choices"], last["usage"]), ([], expected))
        self.assertTrue(all(chunk["choices"] and chunk["usage"] is None for chunk in chunks))
        self.assertTrue(all("usage" not in chunk for chunk in self.chunks(max_tokens=5)))

    def test_the_clients_helper(self):
        with client() as made, made.chat.completions.stream(model=NAME, messages=MESSAGES, temperature=0,
                                                            stop=["."], stream_options={"include_usage": True}) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        whole = self.chat(stop=["."])
        self.assertEqual(final.choices[0].message.content, whole["choices"][0]["message"]["content"])
        self.assertEqual(final.usage.to_dict(), whole["usage"])
        self.assertEqual([event.content for event in events if event.type == "content.done"], [final.choices[0].message.content])

    def test_32_at_once(self):
        prompts = [f"{USER}{' very' * (i // 3)}" for i in range(32)]

        async def ask(made, i):
            fields = {"model": NAME, "messages": [{"role": "user", "content": prompts[i]}], "temperature": 0, "max_tokens": 24}
            if i % 4 == 3:
                return validated(await made.chat.completions.create(**fields), ChatCompletion)["choices"][0]["message"]["content"]
            return joined([validated(chunk, ChatCompletionChunk)
                           async for chunk in await made.chat.completions.create(**fields, stream=True)])[0][0]

        async def ask_all():
            async with client(openai.AsyncOpenAI) as made:
                return await asyncio.gather(*(ask(made, i) for i in range(32)))

        expected = [choice["text"] for choice in self.complete([prompt + "\n" for prompt in prompts], max_tokens=24)["choices"]]
        self.assertEqual(asyncio.run(ask_all()), expected)

    def test_a_cancelled_task_is_cancelled_in_the_engine(self):
        async def ask():
            async with client(openai.AsyncOpenAI) as made:
                async with await made.chat.completions.create(model=NAME, messages=MESSAGES, stream=True,
                                                              extra_body={"ignore_eos": True}) as stream:
                    async for _ in stream:
                        break
        asyncio.run(ask())
        self.assertTrue(SERVER.idle())


class Errors(ChatTest):
    def bad(self, param, needle, code=None, messages=None, **more):
        for stream in (False, True):
            with client() as made, self.assertRaises(openai.BadRequestError) as caught:
                made.chat.completions.create(**{"model": NAME, "messages": messages or MESSAGES, "stream": stream, **more})
            error = caught.exception
            self.assertEqual((error.status_code, error.param, error.code), (400, param, code), error.message)
            self.assertIn(needle, error.message)

    def test_bad_requests_name_their_field(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        self.bad("tools", "tool_choice", tools=tools)
        self.bad("tool_choice", "required", tools=tools, tool_choice="required")
        self.bad("response_format", "response_format", response_format={"type": "json_object"})
        self.bad("top_logprobs", "logprobs", top_logprobs=2)
        self.bad("top_p", "2", top_p=2)
        self.bad("functions", "functions", functions=[{"name": "f"}])
        image = [{"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}]
        self.bad("messages", "messages[0].content[0].type", messages=[{"role": "user", "content": image}])
        self.bad("chat_template", "--chat-template", extra_body={"chat_template": "{{ 1 }}"})
        self.bad("continue_final_message", "add_generation_prompt", extra_body={"continue_final_message": True})

    def test_too_long(self):
        self.bad("messages", "512", "context_length_exceeded", messages=[{"role": "user", "content": "a cat " * 600}])
        self.bad("max_completion_tokens", "512", "context_length_exceeded", max_completion_tokens=510)


# ----------------------------------------------------------------------------------------------------------- LangChain


class LangChain(ChatTest):
    LINES = [SystemMessage(SYSTEM), HumanMessage(USER)]

    def model(self, **more):
        fields = {"model": NAME, "base_url": SERVER.url + "/v1", "api_key": "none", "temperature": 0, "max_retries": 0, "timeout": LIMIT_S,
                  "max_tokens": 24, **more}
        return langchain_openai.ChatOpenAI(**fields)

    def setUp(self):
        self.expected = self.complete(max_tokens=24)
        self.text = self.expected["choices"][0]["text"]

    def check(self, message):
        self.assertEqual(message.content, self.text)
        self.assertEqual(message.response_metadata["finish_reason"], self.expected["choices"][0]["finish_reason"])
        usage = self.expected["usage"]
        self.assertEqual((message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]),
                         (usage["prompt_tokens"], usage["completion_tokens"]))

    def test_invoke(self):
        message = self.model().invoke(self.LINES)
        self.assertIsInstance(message, AIMessage)
        self.check(message)

    def test_stream(self):
        chunks = list(self.model(stream_usage=True).stream(self.LINES))
        self.assertGreater(len(chunks), 2)
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        self.check(whole)

    def test_async(self):
        async def ask():
            model = self.model(stream_usage=True)
            whole = None
            async for chunk in model.astream(self.LINES):
                whole = chunk if whole is None else whole + chunk
            return await model.ainvoke(self.LINES), whole
        for message in asyncio.run(ask()):
            self.check(message)

    def test_batch_and_history(self):
        history = [*self.LINES, AIMessage("The cat was big."), HumanMessage("It")]
        expected = self.complete(PROMPT + "The cat was big.\nIt\n", max_tokens=24)["choices"][0]["text"]
        messages = self.model().batch([self.LINES, history])
        self.assertEqual([message.content for message in messages], [self.text, expected])

    def test_logprobs(self):
        message = self.model(logprobs=True, top_logprobs=2).invoke(self.LINES)
        content = message.response_metadata["logprobs"]["content"]
        self.assertEqual("".join(entry["token"] for entry in content), self.text)

    def test_errors_are_openais(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.model(top_p=2).invoke(self.LINES)
        self.assertEqual(caught.exception.param, "top_p")


if __name__ == "__main__":
    demo_server.PROGRAM = sys.argv.pop(1)
    unittest.main()
