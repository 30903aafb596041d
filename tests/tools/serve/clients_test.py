#!/usr/bin/env python3
"""Programs that evaluate and load servers against `fastdecode serve` with the demo model: lm-eval's local-completions,
guidellm, and what `vllm bench serve` asks.

usage: clients_test.py PROGRAM [unittest arguments, such as LmEval or VllmBench.test_completions]
It runs under the Python of build/clients-long (tools/setup --clients-long); where there is none it says so and exits
with 77. lm-eval's tasks lie in lm_eval_tasks/; nothing is downloaded.
"""
import asyncio
import http.client
import json
import os
import sys
import time
import unittest

import demo_server
from demo_server import DemoServer, LIMIT_S, PromptLogprobs, generate

demo_server.run_under("clients-long", "lm_eval", "guidellm")

# Before the libraries that read them: everything is local, and nothing is left behind.
os.environ.update(HF_HOME=str(demo_server.SCRATCH / "huggingface"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                  TOKENIZERS_PARALLELISM="false")

import lm_eval  # noqa: E402
from guidellm.backends import OpenAIHTTPBackend  # noqa: E402
from guidellm.scheduler import ConcurrentStrategy, Scheduler  # noqa: E402
from guidellm.scheduler.schemas.conversation_graph import (  # noqa: E402
    GenerativeConversationGraph, GenerativeConversationNode)
from guidellm.schemas import GenerationRequest, UsageMetrics  # noqa: E402
from guidellm.schemas.backends import OpenAIHTTPBackendArgs  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

NAME = "demo"
TASKS = demo_server.ROOT / "tests/tools/serve/lm_eval_tasks"
PROMPTS = ["Once upon a time", "One day", "Anna was a clever girl", "Long ago, a lively girl"]
SERVER = None


def setUpModule():
    global SERVER
    SERVER = DemoServer("--served-model-name", NAME)
    unittest.addModuleCleanup(SERVER.kill)


def tearDownModule():
    SERVER.stop()


def texts(prompts, tokens, *arguments):
    """What generate answers with the most likely tokens."""
    given = [x for prompt in prompts for x in ("-p", prompt)]
    return [answer["text"] for answer in generate("--temp", 0, "-n", tokens, *arguments, *given)]


class LmEval(unittest.TestCase):
    """Loglikelihoods and greedy flags are those that the prompts' logits give."""

    @staticmethod
    def samples(task, **arguments):
        """What lm-eval has made of each document of a task."""
        folder = os.getcwd()
        os.chdir(TASKS)  # its data lies beside it
        try:
            model = lm_eval.api.registry.get_model("local-completions")(
                model=NAME, base_url=SERVER.url + "/v1/completions", max_length=512, **arguments)
            tasks = TaskManager(include_path=str(TASKS), include_defaults=False)
            result = lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=tasks, bootstrap_iters=0,
                                             log_samples=True)
        finally:
            os.chdir(folder)
        return model, result["results"][task], result["samples"][task]

    def check(self, answer, ids, begin):
        """`answer`: loglikelihood and greedy flag of the tokens from `begin` on."""
        expected = PromptLogprobs(ids)
        rest = range(begin, len(ids))
        self.assertAlmostEqual(float(answer[0]), sum(map(expected.of_token, rest)), delta=sum(map(expected.tolerance, rest)))
        self.assertEqual(str(answer[1]), str(all(map(expected.is_greedy, rest))))

    def choices(self, **arguments):
        _, result, samples = self.samples("fastdecode_stories_choice", **arguments)
        self.assertEqual(result["acc,none"], 1.0)  # the model knows its stories
        greedy = 0
        for sample in samples:
            given = sample["arguments"]
            pairs = [given[key] for key in sorted(given)] if isinstance(given, dict) else given
            for pair, answer in zip(pairs, sample["resps"], strict=True):
                context, continuation = pair.values() if isinstance(pair, dict) else pair
                ids = SERVER.tokenize(context + continuation, special=False)
                self.check(answer[0], ids, len(SERVER.tokenize(context, special=False)))
                greedy += str(answer[0][1]) == "True"
        self.assertGreater(greedy, 0)

    def test_choices(self):
        self.choices()

    def test_choices_in_batches_of_several_prompts(self):
        self.choices(batch_size=4)

    def test_choices_by_several_requests_at_once(self):
        self.choices(num_concurrent=8)

    def test_whole_texts(self):
        model, result, samples = self.samples("fastdecode_stories_rolling")
        self.assertLess(result["bits_per_byte,none"], 1)
        for sample in samples:
            ids = [model.prefix_token_id, *SERVER.tokenize(sample["target"], special=False)]
            answer = sample["resps"][0]
            total = answer[0] if isinstance(answer, (list, tuple)) else answer
            total = total[0] if isinstance(total, (list, tuple)) else total
            expected = PromptLogprobs(ids)
            rest = range(1, len(ids))
            self.assertAlmostEqual(float(total), sum(map(expected.of_token, rest)), delta=sum(map(expected.tolerance, rest)))

    def test_generated_texts(self):
        _, _, samples = self.samples("fastdecode_stories_until")
        for sample in samples:
            ids = SERVER.tokenize(sample["doc"]["context"], special=False)
            expected = generate("--temp", 0, "-n", 24, "--stop", ".", "--prompt-ids", ",".join(map(str, ids)))[0]["text"]
            self.assertEqual(sample["resps"][0][0], expected)


class Guidellm(unittest.TestCase):
    """Its backend and its scheduler. Its command wants PyTorch to read data sets, and nothing else of it."""

    @staticmethod
    def backend(**arguments):
        return OpenAIHTTPBackend(OpenAIHTTPBackendArgs(target=SERVER.url, request_format="/v1/completions",
                                                       timeout=LIMIT_S, **arguments))

    def test_validation(self):
        async def validate():
            backend = self.backend()
            await backend.process_startup()
            try:
                await backend.validate()
                return await backend.available_models(), await backend.default_model()
            finally:
                await backend.process_shutdown()
        self.assertEqual(asyncio.run(validate()), ([NAME], NAME))

    def benchmark(self, **arguments):
        """Twelve requests, four at a time: of each the scheduler's report, and how many tokens it asked for."""
        asked = [(prompt, tokens, text) for tokens in (1, 10, 30)
                 for prompt, text in zip(PROMPTS, texts(PROMPTS, tokens, "--ignore-eos"))]
        graphs = []
        for i, (prompt, tokens, _) in enumerate(asked):
            request = GenerationRequest(request_id=f"guide-{i}", columns={"text_column": [prompt]},
                                        output_metrics=UsageMetrics(text_tokens=tokens))
            node = GenerativeConversationNode(node_id="a", agent_id="main", request=request)
            graphs.append(GenerativeConversationGraph(graph_id=str(i), nodes={"a": node}))

        async def run():
            done = {}
            async for response, request, info, _ in Scheduler().run(
                    requests=graphs, backend=self.backend(extras={"body": {"temperature": 0}}, **arguments),
                    strategy=ConcurrentStrategy(streams=4), env=None):
                if info.status in ("completed", "errored", "cancelled"):
                    done[request.request_id] = (info, response)
            return done

        done = asyncio.run(run())
        self.assertEqual(len(done), 12)
        for i, (prompt, tokens, text) in enumerate(asked):
            info, response = done[f"guide-{i}"]
            self.assertEqual((info.status, info.error), ("completed", None))
            self.assertEqual(response.text, text)
            self.assertEqual(response.output_metrics.text_tokens, tokens)
            self.assertEqual(response.input_metrics.text_tokens, len(SERVER.tokenize(prompt)))
            self.assertTrue(response.response_id.startswith("cmpl-"))
            yield info, tokens

    def test_streams(self):
        for info, tokens in self.benchmark(stream=True):
            self.assertIsNotNone(info.timings.first_token_iteration)
            self.assertGreaterEqual(info.timings.token_iterations, 1)
            self.assertLessEqual(info.timings.token_iterations, tokens)

    def test_whole_answers(self):
        for _ in self.benchmark(stream=False):
            pass


class VllmBench(unittest.TestCase):
    """The requests of `vllm bench serve`, and how it reads what comes; it needs all of vLLM to be installed itself."""

    def connection(self):
        made = http.client.HTTPConnection("127.0.0.1", SERVER.port, timeout=LIMIT_S)
        self.addCleanup(made.close)
        return made

    def ask(self, body, request_id):
        """(text, completion tokens, moments at which text came) of a stream that is cut into events at empty lines, whose
        comments are skipped, and which says [DONE]."""
        connection = self.connection()
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json", "Authorization": "Bearer none", "x-request-id": request_id})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertEqual(response.headers["X-Request-Id"], request_id)
        self.assertEqual(response.headers.get_content_type(), "text/event-stream")
        text, tokens, moments, done, rest = "", None, [], False, b""
        while data := response.read1(65536):
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                line = event.decode().strip()
                if not line or line.startswith(":"):
                    continue
                self.assertTrue(line.startswith("data: "), line)
                self.assertFalse(done, "something comes after [DONE]")
                if line == "data: [DONE]":
                    done = True
                    continue
                said = json.loads(line.removeprefix("data: "))
                if choices := said["choices"]:
                    moments.append(time.perf_counter() - begin)
                    text += choices[0]["text"] or ""
                elif usage := said.get("usage"):
                    tokens = usage["completion_tokens"]
        self.assertTrue(done)
        self.assertEqual(rest.strip(), b"")
        return text, tokens, moments

    def test_the_model_is_found(self):
        connection = self.connection()
        connection.request("GET", "/v1/models", headers={"Authorization": "Bearer none"})
        first = json.load(connection.getresponse())["data"][0]
        self.assertEqual(first["id"], NAME)
        self.assertEqual(first["root"], str(demo_server.MODEL))

    def test_completions(self):
        body = {"model": NAME, "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 33, "logprobs": None,
                "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        for i, expected in enumerate(texts(PROMPTS, 33, "--ignore-eos")):
            text, tokens, moments = self.ask({**body, "prompt": PROMPTS[i]}, f"bench-{i}")
            self.assertEqual(text, expected)
            self.assertEqual(tokens, 33)
            # The first chunk with choices is the first token: none comes before.
            self.assertLessEqual(len(moments), 33 + 1)
            self.assertGreater(len(moments), 0)

    def test_lengths_are_kept(self):
        # The longest that fits, as a run of fixed lengths asks for; prompts are also given as token ids.
        ids = [(7 * i) % 1000 + 5 for i in range(256)]
        text, tokens, _ = self.ask({"model": NAME, "prompt": ids, "temperature": 0.0, "repetition_penalty": 1.0,
                                    "max_tokens": 256, "logprobs": None, "stream": True, "ignore_eos": True,
                                    "stream_options": {"include_usage": True}}, "bench-long")
        self.assertEqual(tokens, 256)
        self.assertTrue(text)


if __name__ == "__main__":
    demo_server.PROGRAM = sys.argv.pop(1)
    unittest.main()
