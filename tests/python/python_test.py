#!/usr/bin/env python3
"""The Python package on a real engine: what it answers is what the program prints, and no way of reading loses an
event.

usage: python_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]. PYTHONPATH has tools/python, FASTDECODE_LIBRARY the
library.
"""
import asyncio
import ctypes
import gc
import json
import logging
import math
import os
import pathlib
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import fastdecode
from fastdecode import (LLM, Engine, EngineClosed, FastDecodeError, InvalidArgument, PromptPart, QueueFull,
                        SamplingParams, Unavailable, _delivery, _library, events)

PROGRAM = ""
ROOT = pathlib.Path()
SCRATCH = pathlib.Path()
# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = 120
PROMPT = "Once upon a time"
# Threads that yield to others on their cores may stand still for 10 seconds (Linux 6.18): no home is lost by that.
PATIENT = {"hop_timeout_ms": 60000}
# Each layer takes a ms, so that answers take their time.
SLOW = {"fault": "delay=1:1ms"}
GREEDY = dict(temperature=0.0, ignore_eos=True)


def demo_model():
    return ROOT / "tools/demo_model/model"


def make_engine(**options):
    """Little memory, so that a start is quick; f32, so that answers do not depend on who runs beside them."""
    given = dict(model=demo_model(), kv_gib=0.05, compute="f32", log=None, **PATIENT)
    given.update(options)
    return Engine(given.pop("model"), **given)


class Answer:
    """What events add up to; their tokens follow on each other."""

    def __init__(self):
        self.tokens, self.text, self.last, self._next = [], "", None, None

    def add(self, event):
        if event.kind == "token":
            assert self._next in (None, event.token_index), event
            self._next = event.token_index + len(event.tokens)
            self.tokens += event.tokens
        self.text += event.text
        self.last = event

    def parts(self):
        return self.tokens, self.text, self.last


def read(request):
    """The tokens, the text and the last event of a request, or of what is left of it."""
    answer = Answer()
    for event in request:
        answer.add(event)
    return answer.parts()


async def read_async(request):
    answer = Answer()
    async for event in request:
        answer.add(event)
    return answer.parts()


def program_answers(*arguments, model=None):
    """What the program says of the same: JSON objects."""
    command = [PROGRAM, "generate", "--model", model or demo_model(), "--kv-gib", "0.05", "-q", "--hop-timeout-ms",
               "60000", "--exact", "--json", *arguments]
    result = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def run_script(script, *arguments, **more):
    """Runs a Python program that has an engine."""
    head = ("import sys, os, time, signal, threading\nfrom fastdecode import *\n"
            f"MODEL = {str(demo_model())!r}\nSLOW = {SLOW!r}\n"
            "OPTIONS = dict(kv_gib=0.02, log=None, hop_timeout_ms=60000)\n")
    return subprocess.run([sys.executable, "-c", head + script, *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, **more)


class EngineTest(unittest.TestCase):
    """Tests that share an engine."""

    options = {}

    @classmethod
    def setUpClass(cls):
        cls.engine = make_engine(**cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def ended(self, name, before, more=1):
        """Waits until so many requests more have ended that way than `before`, a Stats."""
        until = time.monotonic() + LIMIT_S
        while getattr(self.engine.stats(), name) < getattr(before, name) + more:
            self.assertLess(time.monotonic(), until, self.engine.stats())
            time.sleep(0.005)


class Answers(EngineTest):
    def test_greedy_tokens_and_text_are_the_programs(self):
        (answer,) = program_answers("-p", PROMPT, "-n", 60, "--temp", 0)
        tokens, text, last = read(self.engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=60)))
        self.assertEqual((tokens, text, last.finish_reason),
                         (answer["token_ids"], answer["text"], answer["finish_reason"]))
        self.assertEqual((last.prompt_tokens, last.generated_tokens), (answer["prompt_tokens"], len(tokens)))

    def test_sampled_tokens_are_the_programs(self):
        (answer,) = program_answers("-p", PROMPT, "-n", 60, "--temp", 0.9, "--top-k", 50, "--top-p", 0.95, "--min-p",
                                    0.01, "--repetition-penalty", 1.1, "--presence-penalty", 0.1, "--frequency-penalty",
                                    0.2,
                                    "--seed", 7)
        params = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1,
                                presence_penalty=0.1, frequency_penalty=0.2, seed=7, max_tokens=60)
        self.assertEqual(read(self.engine.submit(PROMPT, params))[0], answer["token_ids"])

    def test_the_models_own_sampling_is_the_programs(self):
        (answer,) = program_answers("-p", PROMPT, "-n", 60, "--seed", 3)
        params = SamplingParams.default_for(self.engine)
        self.assertAlmostEqual(params.temperature, 0.8, places=6)  # generation_config.json
        params.seed, params.max_tokens = 3, 60
        self.assertEqual(read(self.engine.submit(PROMPT, params))[0], answer["token_ids"])
        self.assertIsNone(SamplingParams.default_for(self.engine).seed)

    def test_without_parameters_the_models_own_hold(self):
        with mock.patch.object(self.engine, "_defaults", SamplingParams(temperature=0, max_tokens=3)):
            tokens = read(self.engine.submit(PROMPT))[0]
        self.assertEqual(tokens, read(self.engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=3)))[0])

    def test_a_seed_repeats_and_none_does_not(self):
        def run(seed):
            return read(self.engine.submit(PROMPT, SamplingParams(seed=seed, max_tokens=60, ignore_eos=True)))[0]
        self.assertEqual(run(5), run(5))
        self.assertNotEqual(run(5), run(2**64 - 1))
        self.assertNotEqual(run(None), run(None))

    def test_text_is_that_of_the_tokens(self):
        for seed in range(5):
            params = SamplingParams(seed=seed, temperature=1.5, max_tokens=100)
            tokens, text, _ = read(self.engine.submit(PROMPT, params))
            self.assertEqual(text, self.engine.detokenize(tokens))

    def test_ways_to_give_a_prompt(self):
        ids = self.engine.tokenize(PROMPT)
        params = SamplingParams(temperature=0, max_tokens=8)
        expected = read(self.engine.submit(PROMPT, params))[0]
        for prompt in (ids, tuple(ids), {"prompt": PROMPT}, {"prompt_token_ids": ids}, [PromptPart(PROMPT)],
                       [PromptPart("Once upon"), PromptPart(" a time")],
                       [PromptPart(ids=ids[1:3]), PromptPart(" a time")]):
            self.assertEqual(read(self.engine.submit(prompt, params))[0], expected, prompt)
        without = read(self.engine.submit(ids[1:], params))[0]
        self.assertEqual(read(self.engine.submit(PROMPT, params, add_special_tokens=False))[0], without)

    def test_special_tokens_are_recognised_where_they_may_be(self):
        self.assertEqual(self.engine.tokenize("<|end|>"), [0, 1])
        self.assertEqual(self.engine.tokenize("<|end|>", add_special_tokens=False), [1])
        self.assertEqual(self.engine.tokenize([PromptPart("<|end|>", special=True)], False), [1])
        typed = self.engine.tokenize([PromptPart("<|end|>")], False)
        self.assertNotIn(1, typed)
        self.assertEqual(self.engine.detokenize(typed), "<|end|>")
        self.assertEqual(self.engine.tokenize([PromptPart("a\0b")], False), self.engine.tokenize("a\0b", False))
        self.assertEqual(self.engine.detokenize(self.engine.tokenize("a\0b\U0001f600")), "a\0b\U0001f600")
        self.assertEqual(self.engine.detokenize([]), "")
        long = "Once upon a time. " * 2000
        self.assertEqual(self.engine.detokenize(self.engine.tokenize(long)), long)

    def test_parts_that_join_are_one_text(self):
        def ids(*parts):
            return self.engine.tokenize(list(parts), False)
        self.assertEqual(ids(PromptPart("<|e", special=True), PromptPart("nd|>", special=True, joins=True)), [1])
        self.assertNotIn(1, ids(PromptPart("<|e", special=True), PromptPart("nd|>", special=True)))
        self.assertNotIn(1, ids(PromptPart("<|e", special=True), PromptPart("nd|>", joins=True)))
        self.assertEqual(ids(PromptPart("Once up"), PromptPart("on a time", joins=True)),
                         ids(PromptPart("Once upon a time")))

    def test_special_tokens_are_shown_if_that_is_asked_for(self):
        for skip, text in ((True, ""), (False, "<|end|><|end|>")):
            params = SamplingParams(max_tokens=2, logit_bias={1: 1000.0}, skip_special_tokens=skip, **GREEDY)
            self.assertEqual(read(self.engine.submit(PROMPT, params))[:2], ([1, 1], text))
        self.assertEqual(self.engine.detokenize([1]), "")
        self.assertEqual(self.engine.detokenize([0, 1], skip_special_tokens=False), "<|begin|><|end|>")

    def test_the_bytes_of_tokens_are_their_text(self):
        text = "a\0b\U0001f600 Once upon a time, \u00e9"
        ids = self.engine.tokenize(text, add_special_tokens=False)
        self.assertEqual(b"".join(map(self.engine.token_bytes, ids)), text.encode())
        self.assertEqual(self.engine.token_bytes(0), b"<|begin|>")
        for none in (-1, self.engine.vocab_size, 2**31 - 1):
            self.assertEqual(self.engine.token_bytes(none), b"")

    def test_stop_strings(self):
        whole = read(self.engine.submit(PROMPT, SamplingParams(max_tokens=40, **GREEDY)))[1]
        stop = whole[len(whole) // 2:][:4]
        before = whole[:whole.index(stop)]
        params = SamplingParams(stop=["never this", stop], max_tokens=40, **GREEDY)
        _, text, last = read(self.engine.submit(PROMPT, params))
        self.assertEqual((text, last.finish_reason, last.stop_reason), (before, "stop", stop))
        params = SamplingParams(stop=stop, include_stop_str_in_output=True, max_tokens=40, **GREEDY)
        self.assertEqual(read(self.engine.submit(PROMPT, params))[1], before + stop)

    def test_stop_tokens_and_eos(self):
        tokens, _, last = read(self.engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=None)))
        self.assertEqual((last.finish_reason, last.stop_reason), ("stop", 1))  # <|end|>
        third = tokens[2]
        for stops in ([third], (999, third)):
            cut, _, last = read(self.engine.submit(PROMPT, SamplingParams(temperature=0, stop_token_ids=stops)))
            self.assertEqual((cut, last.finish_reason, last.stop_reason), (tokens[:tokens.index(third)], "stop", third))
        on, _, last = read(self.engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=450, ignore_eos=True)))
        self.assertEqual((len(on), last.finish_reason, last.stop_reason), (450, "length", None))
        later, _, _ = read(self.engine.submit(PROMPT, SamplingParams(temperature=0, min_tokens=20, max_tokens=20,
                                                                     stop_token_ids=[third])))
        self.assertEqual(len(later), 20)

    def test_no_limit_is_the_contexts(self):
        tokens, _, last = read(self.engine.submit([5] * 500, SamplingParams(max_tokens=None, ignore_eos=True)))
        self.assertEqual((len(tokens), last.finish_reason), (12, "length"))

    def test_logprobs_are_the_programs(self):
        (answer,) = program_answers("-p", PROMPT, "-n", 12, "--temp", 0, "--logprobs", 3, "--ignore-eos")
        seen = [event for event in self.engine.submit(PROMPT, SamplingParams(logprobs=3, max_tokens=12, **GREEDY))
                if event.kind == "token"]
        logprobs = [x for event in seen for x in event.logprobs]
        tops = [x for event in seen for x in event.top_logprobs]
        self.assertEqual(len(logprobs), 12)
        for ours, top, theirs in zip(logprobs, tops, answer["logprobs"]):
            self.assertAlmostEqual(ours, theirs["logprob"], places=5)
            self.assertEqual([token for token, _ in top], [one["token"] for one in theirs["top"]])
            for (_, value), one in zip(top, theirs["top"]):
                self.assertAlmostEqual(value, one["logprob"], places=5)
        for event in self.engine.submit(PROMPT, SamplingParams(logprobs=0, max_tokens=4, **GREEDY)):
            self.assertEqual((len(event.logprobs or []), event.top_logprobs), (len(event.tokens), None))
        for event in self.engine.submit(PROMPT, SamplingParams(max_tokens=4, **GREEDY)):
            self.assertEqual((event.logprobs, event.top_logprobs), (None, None))

    def test_logprobs_of_a_prompt_are_those_of_the_same_tokens_as_an_answer(self):
        prompt = self.engine.tokenize(PROMPT)
        seen = [event for event in self.engine.submit(prompt, SamplingParams(logprobs=2, max_tokens=10, **GREEDY))]
        tokens = [token for event in seen for token in event.tokens]
        again = list(self.engine.submit(prompt + tokens, SamplingParams(prompt_logprobs=2, max_tokens=1, **GREEDY)))
        self.assertEqual([event.kind for event in again], ["prompt", "token", "finished"])
        first = again[0]
        self.assertEqual((first.tokens, first.logprobs[0], first.top_logprobs[0]), (prompt + tokens, None, []))
        logprobs = [x for event in seen for x in event.logprobs or []]
        tops = [x for event in seen for x in event.top_logprobs or []]
        for i, (logprob, top) in enumerate(zip(logprobs, tops), len(prompt)):
            self.assertAlmostEqual(first.logprobs[i], logprob, places=4)
            self.assertEqual([token for token, _ in first.top_logprobs[i]], [token for token, _ in top])
        alone = list(self.engine.submit(prompt, SamplingParams(prompt_logprobs=0, max_tokens=0, **GREEDY)))
        self.assertEqual([event.kind for event in alone], ["prompt", "finished"])
        self.assertEqual((len(alone[0].logprobs), alone[0].top_logprobs), (len(prompt), None))

    def test_logit_bias_decides(self):
        params = SamplingParams(logit_bias={76: 500.0, 77: 1000, 1: -5.5}, max_tokens=3, **GREEDY)
        self.assertEqual(read(self.engine.submit(PROMPT, params))[0], [77, 77, 77])

    def test_events_say_where_they_are(self):
        before = time.monotonic_ns()
        request = self.engine.submit(PROMPT, SamplingParams(max_tokens=10, **GREEDY))
        seen = list(request)
        self.assertEqual({event.request_id for event in seen}, {request.id})
        self.assertEqual([event.kind for event in seen], ["token"] * (len(seen) - 1) + ["finished"])
        self.assertEqual([event.finished for event in seen], [False] * (len(seen) - 1) + [True])
        index = 0
        for event in seen[:-1]:
            self.assertEqual(event.token_index, index)
            index += len(event.tokens)
        times = [event.time_ns for event in seen]
        self.assertEqual(times, sorted(times))
        self.assertTrue(before <= seen[0].submit_time_ns <= times[0] <= times[-1] <= time.monotonic_ns())
        spent = seen[-1].times
        self.assertGreaterEqual(spent.decode.steps, 9)
        for part in (spent.prefill, spent.decode):
            places = (part.s_ns, part.wait_ns, part.home_ns, part.wire_ns, part.boundary_ns, part.sampling_ns)
            self.assertEqual(part.total_ns, sum(places))
        self.assertTrue(request.finished)
        self.assertEqual(list(request), [])
        self.assertIsNone(request.next())

    def test_a_reader_who_comes_late_misses_nothing(self):
        params = SamplingParams(max_tokens=300, logprobs=1, **GREEDY)
        at_once = read(self.engine.submit(PROMPT, params))[:2]
        late = self.engine.submit(PROMPT, params)
        read(self.engine.submit("A", params))
        self.ended("finished_length", self.engine.stats(), 0)
        self.assertEqual(read(late)[:2], at_once)


class Choices(EngineTest):
    params = dict(max_tokens=30, temperature=1.0, ignore_eos=True)

    def read_all(self, events):
        """What events add up to, by choice."""
        answers = {}
        for event in events:
            answer = answers.setdefault(event.choice, Answer())
            self.assertFalse(answer.last is not None and answer.last.finished, "an event behind the last one of its choice")
            answer.add(event)
        return [answers[k].parts() for k in sorted(answers)]

    def alone(self, seed, **more):
        return read(self.engine.submit(PROMPT, SamplingParams(seed=seed, **{**self.params, **more})))[0]

    def test_each_is_what_a_request_of_its_own_gets(self):
        before = self.engine.stats()
        request = self.engine.submit(PROMPT, SamplingParams(n=4, seed=2**64 - 2, **self.params))
        answers = self.read_all(request)
        self.assertEqual([tokens for tokens, _, _ in answers], [self.alone((2**64 - 2 + k) % 2**64) for k in range(4)])
        self.assertEqual([last.finish_reason for _, _, last in answers], ["length"] * 4)
        self.assertEqual(len({last.prompt_tokens for _, _, last in answers}), 1)
        self.assertTrue(request.finished)
        self.assertEqual(list(request), [])
        after = self.engine.stats()
        self.assertEqual(after.requests_submitted - before.requests_submitted, 5)
        self.assertEqual(after.prompt_tokens - before.prompt_tokens, 5 * answers[0][2].prompt_tokens)
        self.assertEqual(len(self.engine._delivery.streams), 0)

    def test_an_asyncio_loop(self):
        async def run():
            request = self.engine.submit(PROMPT, SamplingParams(n=3, seed=9, **self.params))
            return [event async for event in request]
        answers = self.read_all(asyncio.run(run()))
        self.assertEqual([tokens for tokens, _, _ in answers], [self.alone(9 + k) for k in range(3)])

    def test_a_cancel_ends_them_all(self):
        with make_engine(**SLOW) as engine:
            request = engine.submit(PROMPT, SamplingParams(n=3, max_tokens=400, ignore_eos=True))
            first = request.next()
            request.cancel()
            answers = self.read_all([first, *request])
            self.assertEqual([last.finish_reason for _, _, last in answers], ["cancelled"] * 3)

    def test_chats(self):
        chat = self.engine.render_chat([{"role": "user", "content": PROMPT}])
        events = list(self.engine.submit_chat(chat, SamplingParams(n=3, seed=1, **self.params)))
        contents = ["".join(e.content for e in events if e.choice == k) for k in range(3)]
        expected = [self.engine.chat(chat, SamplingParams(seed=1 + k, **self.params)).content for k in range(3)]
        self.assertEqual(contents, expected)
        with self.assertRaisesRegex(InvalidArgument, "^n: 2 is more than the one answer"):
            self.engine.chat(chat, SamplingParams(n=2))


class PrefixCache(EngineTest):
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)

    def cached(self, prompt, **more):
        return read(self.engine.submit(prompt, self.params, **more))[2].cached_tokens

    def test_prompts_that_begin_alike(self):
        prompt = [(7 * i) % 1000 + 2 for i in range(200)]
        self.assertEqual(self.cached(prompt), 0)
        first = self.cached(prompt)
        self.assertTrue(100 < first < 200, first)
        self.assertEqual(self.cached(prompt[:150] + [5] * 50), 150 // 32 * 32)
        self.assertEqual(self.cached(prompt, prefix_cache=False), 0)
        self.assertEqual(self.cached(prompt, cache_salt="somebody"), 0)
        self.assertEqual(self.cached({"prompt_token_ids": prompt, "cache_salt": "somebody"}), first)
        self.assertEqual(self.cached(prompt, cache_salt="nobody"), 0)
        stats = self.engine.stats()
        self.assertGreater(stats.prefix_tokens, stats.cached_tokens)
        self.assertEqual(stats.cached_tokens, sum(home.cached_tokens for home in self.engine.homes()))
        self.assertTrue(0 < stats.kv_pages_cached < stats.kv_pages)

    def test_nothing_is_kept_of_a_request_that_wants_that(self):
        prompt = [(11 * i) % 1000 + 2 for i in range(200)]
        self.assertEqual(self.cached(prompt, prefix_cache=False), 0)
        self.assertEqual(self.cached(prompt), 0)

    def test_the_option(self):
        with make_engine(prefix_cache=False) as engine:
            for _ in range(2):
                last = read(engine.submit([5] * 200, self.params))[2]
                self.assertEqual(last.cached_tokens, 0)
            self.assertEqual(engine.stats().prefix_tokens, 0)


class Models(unittest.TestCase):
    def test_greedy_tokens_are_those_of_transformers(self):
        model = ROOT / "tests/golden/transformers/gqa"
        golden = json.loads((model / "goldens.json").read_text())
        with make_engine(model=model) as engine:
            self.assertFalse(engine.has_tokenizer)
            self.assertIn("tokenizer.json", engine.tokenizer_missing_reason)
            for greedy in golden["greedy"]:
                prompt = golden["prompt_ids"][:greedy["prompt_length"]]
                count = min(len(greedy["token_ids"]), 20)
                tokens, text, _ = read(engine.submit(prompt, SamplingParams(max_tokens=count, **GREEDY)))
                self.assertEqual((tokens, text), (greedy["token_ids"][:count], ""))
            with self.assertRaisesRegex(InvalidArgument, "text needs a tokenizer"):
                engine.submit("text", SamplingParams())

    def test_a_tokenizer_that_cannot_be_read(self):
        model = SCRATCH / "broken-tokenizer"
        shutil.copytree(demo_model(), model)
        (model / "tokenizer.json").write_text("{")
        messages = []
        with make_engine(model=model, log=lambda level, text: messages.append((level, text))) as engine:
            self.assertIn("not valid JSON", engine.tokenizer_missing_reason)
            self.assertEqual(read(engine.submit([5, 6], SamplingParams(max_tokens=2, **GREEDY)))[1], "")
        self.assertEqual([level for level, text in messages if "not valid JSON" in text], [logging.WARNING])
        with self.assertRaisesRegex(InvalidArgument, "tokenizer.json: not valid JSON"):
            make_engine(model=model, need_text=True)

    def test_a_synthetic_model(self):
        library = _library.load()
        synth = _library.fd_synth()
        library.fd_synth_init(ctypes.byref(synth), ctypes.sizeof(synth))
        synth.shape, synth.out_dir = b"tiny-random", str(SCRATCH / "synthetic").encode()
        _library.check(library.fd_synthesize(ctypes.byref(synth)))
        (answer,) = program_answers("--prompt-ids", "5,6,7", "-n", 20, "--temp", 0, "--ignore-eos",
                                    model=SCRATCH / "synthetic")
        with LLM(SCRATCH / "synthetic", kv_gib=0.05, compute="f32", log=None, **PATIENT) as llm:
            (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]},
                                     SamplingParams(max_tokens=20, logprobs=1, **GREEDY))
            self.assertEqual(output.outputs[0].token_ids, answer["token_ids"])
            self.assertIsNone(output.outputs[0].logprobs[0][answer["token_ids"][0]].decoded_token)


class Reading(EngineTest):
    """Threads and loops that read at the same time; every answer is what it is alone."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = {}

    def params(self, seed):
        return SamplingParams(seed=seed, max_tokens=20 + seed % 50, ignore_eos=True)

    def expected(self, seed):
        if seed not in self.alone:
            self.alone[seed] = read(self.engine.submit(PROMPT, self.params(seed)))[:2]
        return self.alone[seed]

    def threads(self, works):
        """Runs functions in threads of their own; raises what they do."""
        failures = []

        def guarded(work):
            try:
                work()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            self.assertFalse(thread.is_alive(), "a reader hangs")
        if failures:
            raise failures[0]

    def check_blocking(self, seeds):
        for seed in seeds:
            self.assertEqual(read(self.engine.submit(PROMPT, self.params(seed)))[:2], self.expected_of[seed])

    async def check_async(self, seeds):
        answers = await asyncio.gather(*(read_async(self.engine.submit(PROMPT, self.params(seed))) for seed in seeds))
        for seed, answer in zip(seeds, answers):
            self.assertEqual(answer[:2], self.expected_of[seed])

    def setUp(self):
        self.expected_of = {seed: self.expected(seed) for seed in range(12)}

    def test_threads(self):
        self.threads([lambda i=i: self.check_blocking([i % 12, (i + 5) % 12, (i + 7) % 12]) for i in range(24)])

    def test_one_thread_reads_many_in_any_order(self):
        requests = [(seed, self.engine.submit(PROMPT, self.params(seed))) for seed in range(12)]
        random.Random(1).shuffle(requests)
        for seed, request in requests:
            self.assertEqual(read(request)[:2], self.expected_of[seed])

    def test_two_hundred_streams_of_a_loop(self):
        asyncio.run(self.check_async([i % 12 for i in range(200)]))

    def test_one_loop_after_the_other(self):
        for _ in range(3):
            asyncio.run(self.check_async(range(12)))
        self.assertLessEqual(len(self.engine._delivery._watches), 2)  # of loops that are closed at most the last

    def test_several_loops_at_once(self):
        self.threads([lambda: asyncio.run(self.check_async([i % 12 for i in range(40)])) for _ in range(3)])

    def test_threads_and_loops_at_once(self):
        works = [lambda i=i: self.check_blocking([(i + k) % 12 for k in range(6)]) for i in range(8)]
        # A loop in debug mode refuses what another thread does to it.
        works += [lambda: asyncio.run(self.check_async([i % 12 for i in range(60)]), debug=True)] * 2
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # of callbacks that a busy machine makes slow
        self.threads(works)

    def test_threads_that_wait_with_a_timeout(self):
        def work(seed):
            request, tokens = self.engine.submit(PROMPT, self.params(seed)), []
            while True:
                try:
                    event = request.next(timeout=0.0005)
                except TimeoutError:
                    continue
                if event is None:
                    break
                tokens += event.tokens
            self.assertEqual(tokens, self.expected_of[seed][0])
        self.threads([lambda seed=seed: work(seed) for seed in range(8)])

    def test_an_interrupt_while_events_are_copied_loses_none(self):
        copy, count = _delivery.copy_event, 0

        def interrupted(*arguments):
            nonlocal count
            count += 1
            if count % 7 == 3:
                raise KeyboardInterrupt
            return copy(*arguments)

        requests = [self.engine.submit(PROMPT, self.params(seed)) for seed in range(12)]
        with mock.patch.object(_delivery, "copy_event", interrupted):
            for seed, request in enumerate(requests):
                tokens = []
                while True:
                    try:
                        event = request.next()
                    except KeyboardInterrupt:
                        continue
                    if event is None:
                        break
                    tokens += event.tokens
                self.assertEqual(tokens, self.expected_of[seed][0])

    def test_whoever_waits_longest_is_not_left_alone(self):
        with make_engine(max_sequences=1, **SLOW) as engine:  # one after the other
            params = SamplingParams(max_tokens=5, **GREEDY)
            requests = [engine.submit(PROMPT, params) for _ in range(6)]
            answers = []
            self.threads([lambda request=request: answers.append(read(request)[:2]) for request in requests])
            self.assertEqual(answers, [read(engine.submit(PROMPT, params))[:2]] * 6)

    def test_a_leader_is_told_of_what_others_took_for_it(self):
        delivery, poller, answers = self.engine._delivery, select.poll(), []
        poller.register(delivery._wake_read, select.POLLIN)  # alone: it sees no event itself
        with mock.patch.object(delivery, "_poller", poller):
            request = self.engine.submit(PROMPT, self.params(3))
            thread = threading.Thread(target=lambda: answers.append(read(request)[:2]), daemon=True)
            thread.start()
            until = time.monotonic() + LIMIT_S
            while thread.is_alive() and time.monotonic() < until:
                delivery.deliver(None)
                time.sleep(0.001)
        self.assertEqual(answers, [self.expected_of[3]])

    def test_two_readers_of_one_request_are_told(self):
        with make_engine(**SLOW) as engine:
            request = engine.submit(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True))
            waits = threading.Event()

            def wait():
                waits.set()
                for _ in request:
                    pass
            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            waits.wait()
            until = time.monotonic() + LIMIT_S
            with self.assertRaisesRegex(RuntimeError, "two threads or tasks"):
                while time.monotonic() < until:
                    request.next()
            request.cancel()
            thread.join(LIMIT_S)
            self.assertFalse(thread.is_alive())


class Ends(EngineTest):
    """How requests end early, on an engine that takes its time."""

    options = dict(SLOW, max_queue=4)
    long = dict(max_tokens=400, ignore_eos=True)

    def params(self):
        return SamplingParams(**self.long)

    def test_cancel(self):
        request = self.engine.submit(PROMPT, self.params())
        request.next()
        request.cancel()
        self.assertEqual(read(request)[2].finish_reason, "cancelled")
        request.cancel()  # nothing left to do

    def test_a_loop_that_is_left_cancels(self):
        before = self.engine.stats()
        request = self.engine.submit(PROMPT, self.params())
        for _ in request:
            break
        self.ended("finished_cancelled", before)
        self.assertEqual(read(request)[2].finish_reason, "cancelled")  # what is left can still be read

    def test_an_iterator_that_is_closed_cancels(self):
        before = self.engine.stats()
        request = self.engine.submit(PROMPT, self.params())
        iterator = iter(request)
        next(iterator)
        iterator.close()
        self.ended("finished_cancelled", before)

    def test_a_request_that_is_dropped_is_cancelled(self):
        before = self.engine.stats()
        self.engine.submit(PROMPT, self.params())
        self.ended("finished_cancelled", before)
        self.assertEqual(len(self.engine._delivery.streams), 0)
        read(self.engine.submit(PROMPT, SamplingParams(max_tokens=1)))  # takes what the others left

    def test_leaving_with_cancels(self):
        before = self.engine.stats()
        with self.engine.submit(PROMPT, self.params()) as request:
            request.next()
        self.ended("finished_cancelled", before)

    def test_a_loop_that_ends_cancels_nothing(self):
        before = self.engine.stats()
        read(self.engine.submit(PROMPT, SamplingParams(max_tokens=2)))
        self.assertEqual(self.engine.stats().finished_cancelled, before.finished_cancelled)

    def test_timeouts_leave_the_request_alone(self):
        request = self.engine.submit(PROMPT, SamplingParams(max_tokens=5, **GREEDY))
        timeouts, tokens = 0, []
        while True:
            try:
                event = request.next(timeout=0)
            except TimeoutError:
                timeouts += 1
                continue
            if event is None:
                break
            tokens += event.tokens
        self.assertEqual(len(tokens), 5)
        self.assertGreater(timeouts, 0)

    def test_a_deadline(self):
        started = time.monotonic()
        _, _, last = read(self.engine.submit(PROMPT, self.params(), deadline=0.1))
        self.assertEqual(last.finish_reason, "deadline")
        self.assertGreaterEqual(time.monotonic() - started, 0.1)
        self.assertEqual(read(self.engine.submit(PROMPT, self.params(), deadline=0))[2].finish_reason, "deadline")
        for deadline in (math.inf, 10**9):
            params = SamplingParams(max_tokens=1, ignore_eos=True)
            self.assertEqual(read(self.engine.submit(PROMPT, params, deadline=deadline))[2].finish_reason, "length")
        for deadline in (-1, math.nan):
            with self.assertRaisesRegex(InvalidArgument, "deadline"):
                self.engine.submit(PROMPT, self.params(), deadline=deadline)

    def test_a_full_queue(self):
        before = self.engine.stats()
        requests = [self.engine.submit(PROMPT, self.params()) for _ in range(4)]
        with self.assertRaisesRegex(QueueFull, "queue is full") as caught:
            self.engine.submit(PROMPT, self.params())
        self.assertEqual(caught.exception.code, 8)
        self.assertEqual(self.engine.stats().requests_refused, before.requests_refused + 1)
        for request in requests:
            request.cancel()
        self.assertEqual([read(request)[2].finish_reason for request in requests], ["cancelled"] * 4)
        self.assertEqual(len(self.engine._delivery.streams), 0)
        read(self.engine.submit(PROMPT, SamplingParams(max_tokens=1)))

    def test_a_task_that_is_cancelled_cancels_its_request(self):
        async def main():
            request = self.engine.submit(PROMPT, self.params())
            task = asyncio.ensure_future(read_async(request))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return (await read_async(request))[2]
        self.assertEqual(asyncio.run(main()).finish_reason, "cancelled")

    def test_an_async_loop_that_is_left_cancels(self):
        async def main():
            request = self.engine.submit(PROMPT, self.params())
            async for _ in request:
                break
            return (await read_async(request))[2]
        self.assertEqual(asyncio.run(main()).finish_reason, "cancelled")

    def test_a_loop_that_ends_first_hangs_nobody(self):
        async def main():
            asyncio.ensure_future(read_async(self.engine.submit(PROMPT, self.params())))
            await asyncio.sleep(0.02)
        before = self.engine.stats()
        asyncio.run(main())
        self.ended("finished_cancelled", before)
        read(self.engine.submit(PROMPT, SamplingParams(max_tokens=1)))

    def test_ctrl_c_ends_a_wait_at_once_and_cancels(self):
        before = self.engine.stats()
        request = self.engine.submit(PROMPT, self.params())
        request.next()
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in request:
                pass
        self.ended("finished_cancelled", before)

    def test_ctrl_c_cancels_all_prompts_of_generate(self):
        llm = LLM.__new__(LLM)
        llm.engine, llm._has_tokenizer, llm._decoded = self.engine, True, {}
        before = self.engine.stats()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            llm.generate([PROMPT] * 6, self.params())
        self.ended("finished_cancelled", before, 4)
        self.assertEqual(len(self.engine._delivery.streams), 0)


class Lives(unittest.TestCase):
    """Engines that are made, closed, drained, forked and forgotten."""

    def test_what_is_said_of_an_engine(self):
        with make_engine(max_context=256, core_plan="split", homes=["local"]) as engine:
            self.assertEqual((engine.vocab_size, engine.max_context, engine.has_tokenizer), (1024, 256, True))
            self.assertIn("home 0: local", engine.describe())
            self.assertIn("split", engine.describe())
            read(engine.submit(PROMPT, SamplingParams(max_tokens=3, ignore_eos=True)))
            stats = engine.stats()
            self.assertEqual((stats.homes, stats.homes_up, stats.requests_submitted, stats.finished_length,
                              stats.prompt_tokens, stats.generated_tokens), (1, 1, 1, 1, 5, 3))
            self.assertGreater(stats.steps, 0)
            self.assertEqual(json.loads(engine.stats_json())["homes"][0]["index"], 0)
            self.assertIsInstance(json.loads(engine.pages_json()), list)
            home, = engine.homes()
            self.assertEqual((home.up, home.name[:11], home.hops, home.losses), (True, "local, node", stats.hops, 0))
            self.assertTrue(stats.created_ns < home.last_reply_ns < stats.now_ns)
            self.assertEqual(engine.front_cores(), [])
            model = json.loads(engine.model_describe())
            self.assertEqual((model["vocab_size"], model["max_context"], model["bos_token"], model["stop_token_ids"]),
                             (1024, 256, "<|begin|>", [1]))
            engine.reset_stats()
            self.assertEqual(json.loads(engine.stats_json())["sampled_tokens"], 0)

    def test_wrong_options(self):
        for options, words in ((dict(max_contxt=5), "max-contxt"), (dict(max_context="many"), "many"),
                               (dict(core_plan="spilt"), "spilt"),
                               (dict(gpudirect=True, spart="cpu", isa="none"), "none")):
            with self.assertRaisesRegex(InvalidArgument, words) as caught:
                make_engine(**options)
            self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(FastDecodeError) as caught:
            make_engine(model="/nowhere")
        self.assertIn("/nowhere", str(caught.exception))
        with self.assertRaisesRegex(TypeError, "max_queue"):
            make_engine(max_queue=object())
        with self.assertRaisesRegex(InvalidArgument, "0 byte"):
            make_engine(isa="auto\0")
        make_engine(max_queue=None).close()  # None is the default

    def test_logs(self):
        with self.assertLogs("fastdecode", logging.INFO) as logs:
            make_engine(log=logging.getLogger("fastdecode")).close()
        self.assertTrue(any("loaded" in line for line in logs.output), logs.output)
        told = []
        make_engine(log=lambda level, message: told.append((level, message))).close()
        self.assertTrue(any(level == logging.INFO and "loaded" in message for level, message in told), told)

    def test_a_closed_engine(self):
        engine = make_engine(**SLOW)
        request = engine.submit(PROMPT, SamplingParams(max_tokens=400))
        engine.close()
        engine.close()
        for call in (lambda: engine.submit(PROMPT), engine.stats, engine.describe, lambda: engine.tokenize("a"),
                     engine.drain, lambda: engine.vocab_size, lambda: list(request),
                     lambda: asyncio.run(read_async(request))):
            with self.assertRaisesRegex(EngineClosed, "the engine is closed"):
                call()
        request.cancel()

    def test_closing_wakes_who_waits(self):
        engine = make_engine(**SLOW)
        ended = []

        def wait():
            try:
                read(engine.submit(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True)))
            except EngineClosed:
                ended.append("thread")

        async def wait_async():
            try:
                await read_async(engine.submit(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True)))
            except EngineClosed:
                ended.append("task")

        works = [wait] * 3 + [lambda: asyncio.run(wait_async())]
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        while engine.stats().requests_submitted < 4:
            time.sleep(0.001)
        engine.close()
        for thread in threads:
            thread.join(LIMIT_S)
        self.assertEqual(sorted(ended), ["task"] + ["thread"] * 3)

    def test_no_descriptor_is_left(self):
        def count():
            gc.collect()
            return len(os.listdir("/proc/self/fd"))
        make_engine().close()
        before = count()
        for _ in range(3):
            engine = make_engine()
            asyncio.run(read_async(engine.submit(PROMPT, SamplingParams(max_tokens=2))))
            read(engine.submit(PROMPT, SamplingParams(max_tokens=2)))
            engine.close()
        engine = make_engine()
        del engine  # without close
        self.assertEqual(count(), before)

        async def close_within():
            inside = count()
            engine = make_engine()
            await read_async(engine.submit(PROMPT, SamplingParams(max_tokens=2)))
            engine.close()
            self.assertEqual(count(), inside)
            engine = make_engine()
            await read_async(engine.submit(PROMPT, SamplingParams(max_tokens=2)))
            await asyncio.get_running_loop().run_in_executor(None, engine.close)
            await asyncio.sleep(0)
            self.assertEqual(count(), inside)
        asyncio.run(close_within())

    def test_drain(self):
        with make_engine(**SLOW) as engine:
            request = engine.submit(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True))
            self.assertEqual(engine.drain(0.01), 1)
            self.assertEqual(engine.stats().draining, 1)
            with self.assertRaisesRegex(Unavailable, "draining"):
                engine.submit(PROMPT)
            request.cancel()
            self.assertEqual(engine.drain(), 0)
            self.assertEqual(read(request)[2].finish_reason, "cancelled")

    def test_a_home_that_is_lost_is_only_a_pause_of_its_requests(self):
        params = SamplingParams(max_tokens=100, ignore_eos=True, temperature=0)
        with LLM(demo_model(), kv_gib=0.02, log=None, batch_invariant=True) as llm:
            expected = llm.generate([PROMPT] * 2, params)
        with LLM(demo_model(), kv_gib=0.02, log=None, batch_invariant=True, fault="cut=60") as llm:
            outputs = llm.generate([PROMPT] * 2, params)
            self.assertGreater(llm.engine.homes()[0].losses, 0)
        self.assertEqual([output.outputs[0].finish_reason for output in outputs], ["length"] * 2)
        self.assertEqual([output.outputs[0].token_ids for output in outputs],
                         [output.outputs[0].token_ids for output in expected])

    def test_a_forked_child_is_told_and_does_no_harm(self):
        result = run_script("""
engine = Engine(MODEL, **OPTIONS)
request = engine.submit("A", SamplingParams(max_tokens=5, ignore_eos=True, temperature=0))
import warnings
warnings.simplefilter("ignore")  # of threads: that the engine has some is what this is about
pid = os.fork()
if pid == 0:
    for call in (lambda: engine.submit("A"), engine.stats, lambda: next(iter(request)), lambda: engine.tokenize("A")):
        try:
            call()
            print("no error")
        except EngineClosed as error:
            print("does not survive fork()" in str(error))
    engine.close()
    request.cancel()
    del request, engine
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print(status, sum(len(event.tokens) for event in request))
""")
        self.assertEqual((result.stdout.split(), result.stderr), (["True"] * 4 + ["0", "5"], ""))

    def test_a_program_that_ends_without_close(self):
        result = run_script("""
engine = Engine(MODEL, **dict(OPTIONS, log=lambda level, message: None), **SLOW)
requests = [engine.submit("A", SamplingParams(max_tokens=400)) for _ in range(3)]
def wait():
    try:
        for event in requests[0]: pass
    except EngineClosed: pass
threading.Thread(target=wait, daemon=True).start()
requests[1].next()
destroy = Engine._destroy
Engine._destroy = lambda self: (destroy(self), print("destroyed"))
sys.keep = engine  # nothing else collects it
print("end")
""")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "end\ndestroyed\n", ""))

    def test_a_signal_handler_may_close(self):
        for wait, error in (("engine.drain()", True), ("for event in request: pass", True)):
            result = run_script(f"""
engine = Engine(MODEL, **OPTIONS, **SLOW)
request = engine.submit("A", SamplingParams(max_tokens=400, ignore_eos=True))
signal.signal(signal.SIGALRM, lambda *_: engine.close())
signal.setitimer(signal.ITIMER_REAL, 0.15)
try:
    {wait}
except EngineClosed as error:
    print(error)
print("end")
""")
            self.assertEqual((result.returncode, result.stderr), (0, ""), wait)
            self.assertEqual(result.stdout, "the engine is closed\nend\n", wait)


class Parameters(unittest.TestCase):
    def test_what_is_not_supported_is_refused_by_name(self):
        for name, value in (("best_of", 3), ("detokenize", False),
                            ("spaces_between_special_tokens", False), ("truncate_prompt_tokens", 5),
                            ("logits_processors", []),
                            ("bad_words", ["a"]), ("allowed_token_ids", [1]), ("guided_decoding", object()),
                            ("structured_outputs", object()), ("extra_args", {"a": 1})):
            with self.assertRaisesRegex(InvalidArgument, f"^{name}: .* is not supported"):
                SamplingParams(**{name: value})
        with self.assertRaises(TypeError):
            SamplingParams(temprature=1)

    def test_what_cannot_be_is_refused_when_it_is_made(self):
        for name, value in (("temperature", -1), ("temperature", math.nan), ("top_p", 0), ("top_p", 1.5), ("min_p", 2),
                            ("top_k", -2), ("top_k", 2**32), ("repetition_penalty", 0), ("max_tokens", 0),
                            ("max_tokens", 2**32), ("max_tokens", -1), ("min_tokens", 2**32 + 1), ("min_tokens", 17),
                            ("seed", -1), ("seed", 2**64), ("logprobs", 21), ("logprobs", -1), ("logprobs", 2**32),
                            ("n", 0), ("n", -1), ("n", 2**32),
                            ("stop", [""]), ("stop", "a\0b"), ("stop", "\ud800"), ("stop_token_ids", [2**31]),
                            ("logit_bias", {2**32: 1.0})):
            with self.assertRaisesRegex(InvalidArgument, name):
                SamplingParams(**{name: value})
        for name, value in (("temperature", "1"), ("max_tokens", 1.5), ("stop", [1]), ("stop_token_ids", ["a"]),
                            ("stop_token_ids", 5), ("seed", "x"), ("top_p", None), ("logit_bias", {"a": 1}),
                            ("n", 1.5), ("n", "2")):
            with self.assertRaisesRegex(TypeError, name):
                SamplingParams(**{name: value})

    def test_what_says_nothing_is_taken(self):
        SamplingParams(n=3, best_of=3)
        SamplingParams(top_k=-1, best_of=1, bad_words=[], stop=[], stop_token_ids=[], logit_bias={}, max_tokens=None)

    def test_wrong_prompts(self):
        with make_engine() as engine:
            for prompt, words in (([], "no tokens"), ([5000], "5000"), ([2**32 + 5], "4294967301"), ([-1], "-1"),
                                  ([5] * 512, "context of 512"), ("\ud800", "prompt: character 0"),
                                  ({"text": "a"}, "text"), ({"cache_salt": "a"}, "must have prompt"),
                                  ({"prompt": "a", "cache_salt": ""}, "cache_salt: it is empty"),
                                  ({"prompt": "a", "cache_salt": "x" * 4097}, "cache_salt: it has 4097 bytes")):
                with self.assertRaisesRegex(InvalidArgument, words):
                    engine.submit(prompt, SamplingParams())
            for prompt in (5, b"bytes", None, ["text"], {"prompt": "a", "cache_salt": 5}):
                with self.assertRaises(TypeError):
                    engine.submit(prompt, SamplingParams())
            with self.assertRaisesRegex(InvalidArgument, "^n: 129 is more than 128"):
                engine.submit("a", SamplingParams(n=129))
            with self.assertRaisesRegex(InvalidArgument, "^n: 129 is more than 128"):
                engine.submit_chat([{"role": "user", "content": "a"}], SamplingParams(n=129))
            self.assertEqual(engine.stats().requests_submitted, 0)
            self.assertEqual(len(engine._delivery.streams), 0)

    def test_errors_can_be_sent_to_other_processes(self):
        for error in (InvalidArgument(3, "max-context: 'x'"), fastdecode.LibraryError("not there")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), copy.code, str(copy)), (type(error), error.code, str(error)))


class MadeUpEvents(unittest.TestCase):
    """What events become that an engine seldom gives."""

    def event(self, **fields):
        event = _library.fd_event(id=7, stop_index=-1, stop_token=-1, error=b"", **fields)
        return events.copy_event(event, ["first", "second"])

    def test_logprobs_of_a_prompt(self):
        tops = (_library.fd_token_logprob * 6)()
        for i, (token, logprob) in enumerate([(-1, 0), (-1, 0), (4, -0.5), (5, -1.5), (6, -0.25), (-1, 0)]):
            tops[i].token, tops[i].logprob = token, logprob
        event = self.event(kind=3, tokens=(ctypes.c_int32 * 3)(1, 5, 9), token_count=3, top_logprob_count=2,
                           logprobs=(ctypes.c_float * 3)(math.nan, -1.5, -4), top_logprobs=tops)
        self.assertEqual((event.kind, event.tokens, event.logprobs), ("prompt", [1, 5, 9], [None, -1.5, -4.0]))
        self.assertEqual(event.top_logprobs, [[], [(4, -0.5), (5, -1.5)], [(6, -0.25)]])
        llm = LLM.__new__(LLM)
        llm._has_tokenizer = False
        output = fastdecode.RequestOutput("7", None, [1, 5, 9], [fastdecode.CompletionOutput(0, "", [])])
        llm._add(fastdecode.llm._Job(output, SamplingParams()), event)
        first, second, third = output.prompt_logprobs
        self.assertIsNone(first)
        self.assertEqual({t: (x.logprob, x.rank) for t, x in second.items()}, {4: (-0.5, 1), 5: (-1.5, 2)})
        self.assertEqual({t: (x.logprob, x.rank) for t, x in third.items()}, {6: (-0.25, 1), 9: (-4, None)})

    def test_several_tokens_and_a_text_with_zeros(self):
        text = ctypes.create_string_buffer("a\0b\u00e9".encode())
        event = self.event(kind=1, tokens=(ctypes.c_int32 * 2)(3, 4), token_count=2, token_index=5, text_bytes=5,
                           text=ctypes.cast(text, ctypes.POINTER(ctypes.c_char)), choice=2)
        self.assertEqual((event.tokens, event.token_index, event.text, event.choice), ([3, 4], 5, "a\0b\u00e9", 2))

    def test_ends(self):
        for fields, expected in ((dict(finish=1, stop_index=1, stop_token=-1), ("stop", "second")),
                                 (dict(finish=1, stop_index=-1, stop_token=9), ("stop", 9)),
                                 (dict(finish=2), ("length", None)),
                                 (dict(finish=3), ("cancelled", None)), (dict(finish=4), ("error", None)),
                                 (dict(finish=5), ("deadline", None)), (dict(finish=99), ("unknown", None))):
            given = dict(dict(stop_index=-1, stop_token=-1, error=b""), **fields)
            event = events.copy_event(_library.fd_event(kind=2, **given), ["first", "second"])
            self.assertEqual((event.finish_reason, event.stop_reason, event.finished, event.times),
                             (*expected, True, None))
        self.assertEqual(self.event(kind=77).kind, "unknown")  # of a library that is newer than this package


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(demo_model(), kv_gib=0.05, compute="f32", max_queue=3, log=None, **PATIENT)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_a_batch_is_what_each_prompt_is_alone(self):
        prompts = [f"{PROMPT} {i}" for i in range(20)]
        params = [SamplingParams(temperature=0 if i % 2 else 1, seed=i, max_tokens=5 + 3 * i) for i in range(20)]
        batch = self.llm.generate(prompts, params, use_tqdm=False)
        self.assertEqual([output.prompt for output in batch], prompts)
        for prompt, one, output in zip(prompts, params, batch):
            (alone,) = self.llm.generate(prompt, one)
            tokens, text, last = read(self.llm.engine.submit(prompt, one))
            self.assertEqual((output.outputs[0].token_ids, output.outputs[0].text), (tokens, text))
            self.assertEqual(output.outputs, alone.outputs)
            self.assertEqual(output.prompt_token_ids, self.llm.engine.tokenize(prompt))
            self.assertEqual(output.outputs[0].finish_reason, last.finish_reason)
            self.assertTrue(output.finished)
        self.assertEqual(len({output.request_id for output in batch}), 20)

    def test_answers_are_the_programs(self):
        answers = program_answers("-p", "One", "-p", "Two", "-p", "Three", "-n", 30, "--temp", 0)
        outputs = self.llm.generate(["One", "Two", "Three"], SamplingParams(temperature=0, max_tokens=30))
        self.assertEqual([(o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs],
                         [(a["token_ids"], a["text"], a["finish_reason"]) for a in answers])

    def test_kinds_of_prompts(self):
        ids = self.llm.engine.tokenize(PROMPT)
        params = SamplingParams(temperature=0, max_tokens=5)
        outputs = self.llm.generate([PROMPT, {"prompt": PROMPT}, {"prompt_token_ids": ids}, ids,
                                     {"prompt": "shown", "prompt_token_ids": ids}], params)
        self.assertEqual(len({tuple(output.outputs[0].token_ids) for output in outputs}), 1)
        self.assertEqual([output.prompt for output in outputs], [PROMPT, PROMPT, None, None, "shown"])
        self.assertEqual(self.llm.generate([], params), [])
        (only,) = self.llm.generate({"prompt_token_ids": ids}, params)
        self.assertEqual(only.outputs, outputs[0].outputs)

    def test_what_cannot_be_is_refused_before_anything_runs(self):
        before = self.llm.engine.stats()
        for prompts, words in ((["a", "b" * 5000], r"prompts\[1\]: .*context of 512"),
                               (["a", []], r"prompts\[1\]: .*no tokens"),
                               (["a", {"multi_modal_data": 1}], "multi_modal_data"), ([{}], "it has \\[\\]")):
            with self.assertRaisesRegex(InvalidArgument, words):
                self.llm.generate(prompts)
        with self.assertRaisesRegex(TypeError, "prompt_token_ids"):
            self.llm.generate([1, 2, 3])
        with self.assertRaisesRegex(InvalidArgument, "there are 1 for 2"):
            self.llm.generate(["a", "b"], [SamplingParams()])
        self.assertEqual(self.llm.engine.stats().requests_submitted, before.requests_submitted)
        with self.assertRaisesRegex(InvalidArgument, r"prompts\[1\]: .*9999"):
            self.llm.generate(["a", [9999]])

    def test_choices(self):
        prompts = [f"{PROMPT} {i}" for i in range(4)]
        params = SamplingParams(n=2, seed=3, max_tokens=8, logprobs=0, ignore_eos=True)
        outputs = self.llm.generate(prompts, params)
        for prompt, output in zip(prompts, outputs):
            self.assertEqual([answer.index for answer in output.outputs], [0, 1])
            self.assertTrue(output.finished)
            self.assertEqual(output.error, "")
            for k, answer in enumerate(output.outputs):
                (alone,) = self.llm.generate(prompt, SamplingParams(seed=3 + k, max_tokens=8, logprobs=0, ignore_eos=True))
                self.assertEqual(dict(vars(answer), index=0), vars(alone.outputs[0]))
        with self.assertRaisesRegex(InvalidArgument, r"prompts\[1\]: n: 4 is more than 3"):  # max_queue
            self.llm.generate(["a", "b"], [SamplingParams(), SamplingParams(n=4)])
        longer = SamplingParams(n=2, seed=3, max_tokens=60, ignore_eos=True)
        (chat,) = self.llm.chat([{"role": "user", "content": PROMPT}], longer)
        self.assertEqual([answer.reasoning for answer in chat.outputs], ["", ""])
        self.assertNotEqual(chat.outputs[0].token_ids, chat.outputs[1].token_ids)

    def test_what_others_had_computed(self):
        prompt = {"prompt_token_ids": [(13 * i) % 1000 + 2 for i in range(100)], "cache_salt": "a"}
        params = SamplingParams(n=2, max_tokens=2, ignore_eos=True)
        (first,), (later,) = self.llm.generate(prompt, params), self.llm.generate(prompt, params)
        self.assertEqual((first.num_cached_tokens, later.num_cached_tokens), (0, 96))
        ids = {"prompt_token_ids": prompt["prompt_token_ids"]}
        self.assertEqual(self.llm.generate(ids, params)[0].num_cached_tokens, 0)
        self.assertEqual(self.llm.generate(ids, params, cache_salt="a")[0].num_cached_tokens, 96)
        self.assertEqual(self.llm.generate(ids, params, cache_salt="a", prefix_cache=False)[0].num_cached_tokens, 0)

    def test_logprobs(self):
        (output,) = self.llm.generate(PROMPT, SamplingParams(max_tokens=6, logprobs=2, **GREEDY))
        answer = output.outputs[0]
        self.assertEqual(len(answer.logprobs), 6)
        for token, logprobs in zip(answer.token_ids, answer.logprobs):
            self.assertEqual([logprob.rank for logprob in logprobs.values()], [1, 2])
            self.assertEqual(next(iter(logprobs)), token)  # greedy
            self.assertEqual(logprobs[token].decoded_token, self.llm.engine.detokenize([token]))
        self.assertAlmostEqual(answer.cumulative_logprob,
                               sum(of[token].logprob for token, of in zip(answer.token_ids, answer.logprobs)))
        (output,) = self.llm.generate(PROMPT, SamplingParams(max_tokens=6, logprobs=0, temperature=2, seed=1))
        for token, logprobs in zip(output.outputs[0].token_ids, output.outputs[0].logprobs):
            self.assertEqual((list(logprobs), logprobs[token].rank), ([token], None))
        (output,) = self.llm.generate(PROMPT, SamplingParams(max_tokens=6))
        self.assertEqual((output.outputs[0].logprobs, output.outputs[0].cumulative_logprob), (None, None))

    def test_stop_reasons(self):
        (output,) = self.llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=None))
        self.assertEqual((output.outputs[0].finish_reason, output.outputs[0].stop_reason), ("stop", None))
        third = output.outputs[0].token_ids[2]
        (output,) = self.llm.generate(PROMPT, SamplingParams(temperature=0, stop_token_ids=[third]))
        self.assertEqual(output.outputs[0].stop_reason, third)
        (output,) = self.llm.generate(PROMPT, SamplingParams(temperature=0, stop=["her"]))
        self.assertEqual(output.outputs[0].stop_reason, "her")

    def test_the_queue_is_full_of_others(self):
        others = [self.llm.engine.submit(PROMPT, SamplingParams(max_tokens=450, ignore_eos=True)) for _ in range(3)]
        outputs = self.llm.generate(["A", "B"], SamplingParams(max_tokens=3, ignore_eos=True))
        self.assertEqual([len(output.outputs[0].token_ids) for output in outputs], [3, 3])
        self.assertEqual([len(read(request)[0]) for request in others], [450] * 3)

    def test_default_sampling_is_the_models(self):
        self.assertAlmostEqual(self.llm.get_default_sampling_params().temperature, 0.8, places=6)


class Models(unittest.TestCase):
    def test_a_folder_is_inspected_without_an_engine(self):
        model = fastdecode.inspect_model(demo_model(), memory_bytes=1 << 30)
        printed = subprocess.run([PROGRAM, "inspect", "-m", demo_model(), "--memory", "1GiB", "--json"],
                                 capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(model, json.loads(printed.stdout))
        self.assertTrue(model["supported"])
        with self.assertRaises(fastdecode.NotFound):
            fastdecode.inspect_model(SCRATCH / "nowhere")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    # A shell that starts tests in the background may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fd-python-") as scratch:
        SCRATCH = pathlib.Path(scratch)
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
