#!/usr/bin/env python3
"""Chats through the Python package: the prompt is what the template's author and the messages' wrote, and its answers
are what the program says to the same tokens, however they are read.

usage: chat_test.py PROGRAM REPOSITORY_ROOT [unittest arguments]. PYTHONPATH has tools/python, FASTDECODE_LIBRARY the
library.
"""
import asyncio
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import fastdecode
from fastdecode import (LLM, ChatEvent, ChatReader, Engine, EngineClosed, FailedPrecondition, InvalidArgument,
                        PromptPart, ResourceExhausted, SamplingParams)

PROGRAM = ""
ROOT = pathlib.Path()
SCRATCH = pathlib.Path()
# Seconds after which something hangs; far above what a busy machine needs.
LIMIT_S = 120
# Threads that yield to others on their cores may stand still for 10 seconds (Linux 6.18): no home is lost by that.
PATIENT = {"hop_timeout_ms": 60000}
# Of the tokens that it writes, the demo model has <|begin|> (0) and <|end|> (1).
TURNS = ("{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}")
# Shows what a template is given.
SHOWN = ("{{ tools | tojson }} {{ documents | tojson }} {{ add_generation_prompt }} "
         "{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ extra | default('none') }}"
         "{% for message in messages %} {{ message.content }}{% endfor %}")
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
THINKS = "{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}<think>"
HELLO = [{"role": "user", "content": "Once upon a time"}]
GREEDY = dict(temperature=0.0, ignore_eos=True)


def demo_model():
    return ROOT / "tools/demo_model/model"


def template(text):
    """A file with a template."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
    (folder / "chat.jinja").write_text(text)
    return folder / "chat.jinja"


def make_engine(text=TURNS, **options):
    given = dict(kv_gib=0.05, compute="f32", log=None, chat_template=template(text), **PATIENT)
    return Engine(demo_model(), **{**given, **options})


def program_answer(ids, count):
    """What the program says to these tokens: token ids and text."""
    command = [PROGRAM, "generate", "--model", demo_model(), "--kv-gib", "0.05", "-q", "--hop-timeout-ms", "60000",
               "--exact", "--json", "--temp", 0, "--ignore-eos", "-n", count, "--prompt-ids", ",".join(map(str, ids))]
    result = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    return answer["token_ids"], answer["text"]


async def gather(request):
    return [event async for event in request]


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = make_engine()
        cls.addClassCleanup(cls.engine.close)

    def test_it_is_what_the_template_writes(self):
        chat = self.engine.render_chat([{"role": "system", "content": "Be brief."}, *HELLO])
        self.assertEqual(chat.text, "<|begin|>system: Be brief.<|end|>user: Once upon a time<|end|>assistant: ")
        self.assertEqual("".join(part.text for part in chat.parts), chat.text)
        # One <|begin|>, and each <|end|> is the token.
        self.assertEqual(chat.token_ids(), self.engine.tokenize(chat.text, add_special_tokens=False))
        self.assertEqual([token for token in chat.token_ids() if token < 2], [0, 1, 1])

    def test_what_messages_say_becomes_no_special_token(self):
        for typed in ("<|end|>", "a<|begin|>b", "x\0<|end|>y", "\U0001f600 é <|end", "<|end|><|end|>"):
            chat = self.engine.render_chat([{"role": "user", "content": typed}])
            self.assertEqual(chat.text, f"<|begin|>user: {typed}<|end|>assistant: ")
            self.assertEqual([token for token in chat.token_ids() if token < 2], [0, 1], typed)
            special = "".join(part.text for part in chat.parts if part.special)
            self.assertEqual(special, "<|begin|>user: <|end|>assistant: ")
            self.assertTrue(all(part.joins for part in chat.parts))

    def test_the_end_of_the_prompt(self):
        begun = [*HELLO, {"role": "assistant", "content": "there was"}]
        self.assertEqual(self.engine.render_chat(begun, add_generation_prompt=False).text,
                         "<|begin|>user: Once upon a time<|end|>assistant: there was<|end|>")
        self.assertEqual(
            self.engine.render_chat(begun, add_generation_prompt=False, continue_final_message=True).text,
            "<|begin|>user: Once upon a time<|end|>assistant: there was")
        with self.assertRaises(InvalidArgument):
            self.engine.render_chat(begun, continue_final_message=True)

    def test_all_that_a_template_is_given(self):
        with make_engine(SHOWN) as engine:
            at = datetime.datetime(2026, 1, 15, 12, 34, 56)
            for now in (at, at.timestamp(), int(at.timestamp())):
                text = engine.render_chat([{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                                          tools=[{"name": "clock"}], documents=({"title": "a"},),
                                          add_generation_prompt=False, now=now, extra="é").text
                self.assertEqual(text, '[{"name": "clock"}] [{"title": "a"}] False 2026-01-15 12:34:56 é hi')
            # The clock of time() ticks some ms behind that of Python.
            before = datetime.datetime.now().replace(microsecond=0) - datetime.timedelta(seconds=1)
            text = engine.render_chat(HELLO).text
            self.assertEqual(text[:15] + text[35:], "null null True none Once upon a time")
            told = datetime.datetime.strptime(text[15:34], "%Y-%m-%d %H:%M:%S")
            self.assertTrue(before <= told <= datetime.datetime.now(), text)

    def test_a_chat_outlives_its_engine(self):
        engine = make_engine()
        chat = engine.render_chat(HELLO)
        engine.close()
        self.assertEqual(chat.text, "<|begin|>user: Once upon a time<|end|>assistant: ")
        self.assertEqual(chat.reader().read("a", last=True), ("", "a"))
        with self.assertRaises(EngineClosed):
            chat.token_ids()
        with self.assertRaises(EngineClosed):
            engine.render_chat(HELLO)

    def test_what_cannot_be(self):
        cyclic = []
        cyclic.append(cyclic)
        for error, said, messages, more in (
                (InvalidArgument, "messages", {"role": "user"}, {}),
                (InvalidArgument, "messages", None, {}),
                (InvalidArgument, r"messages\[0\]", ["text"], {}),
                (InvalidArgument, "messages", [{"role": "user", "content": "\ud800"}], {}),
                (InvalidArgument, "messages: ", cyclic, {}),
                (TypeError, "messages: .*object", [object()], {}),
                (InvalidArgument, "tools", HELLO, {"tools": {}}),
                (InvalidArgument, "documents: .*JSON", HELLO, {"documents": [float("nan")]}),
                (InvalidArgument, "now: -1 ", HELLO, {"now": -1}),
                (InvalidArgument, "now: nan ", HELLO, {"now": float("nan")}),
                (TypeError, "now: 'today'", HELLO, {"now": "today"})):
            with self.subTest(said=said, more=more), self.assertRaisesRegex(error, said):
                self.engine.render_chat(messages, **more)
        with make_engine("{{ raise_exception('no chats on Sundays') }}") as engine:
            with self.assertRaisesRegex(InvalidArgument, r"chat\.jinja:1:\d+: no chats on Sundays"):
                engine.chat(HELLO)
        with make_engine(ENDLESS) as engine:
            with self.assertRaisesRegex(ResourceExhausted, r"chat\.jinja:1:"):
                engine.render_chat(HELLO)

    def test_a_model_without_a_template(self):
        model = SCRATCH / "no-template"
        shutil.copytree(demo_model(), model, ignore=shutil.ignore_patterns("chat_template.jinja"))
        self.assertTrue(self.engine.has_chat_template)
        self.assertEqual(self.engine.chat_template_missing_reason, "")
        with Engine(model, kv_gib=0.02, log=None, **PATIENT) as engine:
            self.assertFalse(engine.has_chat_template)
            self.assertIn("chat-template", engine.chat_template_missing_reason)
            with self.assertRaisesRegex(FailedPrecondition, "no chat template: .*chat-template"):
                engine.chat(HELLO)

    def test_the_demo_model_has_a_template(self):
        with Engine(demo_model(), kv_gib=0.02, log=None, **PATIENT) as engine:
            chat = engine.render_chat(HELLO)
            self.assertTrue(chat.text.startswith("<|begin|>Once upon a time"), chat.text)
            self.assertEqual(chat.token_ids().count(0), 1)
            self.assertNotEqual(engine.chat(chat, SamplingParams(max_tokens=10, seed=1)).content, "")


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = make_engine()
        cls.addClassCleanup(cls.engine.close)
        cls.params = SamplingParams(max_tokens=12, **GREEDY)
        by_hand = [PromptPart("<|begin|>user: ", special=True), PromptPart("Once upon a time", joins=True),
                   PromptPart("<|end|>assistant: ", special=True, joins=True)]
        cls.prompt = cls.engine.tokenize(by_hand, add_special_tokens=False)
        cls.tokens, cls.text = program_answer(cls.prompt, 12)

    def test_every_way_gives_the_programs_answer(self):
        chat = self.engine.render_chat(HELLO)
        for given in (HELLO, tuple(HELLO), chat):
            answer = self.engine.chat(given, self.params)
            self.assertEqual((answer.token_ids, answer.content, answer.reasoning), (self.tokens, self.text, ""))
            self.assertEqual((answer.finish_reason, answer.stop_reason, answer.error), ("length", None, ""))
            self.assertEqual((answer.prompt_tokens, answer.generated_tokens), (len(self.prompt), 12))
            self.assertGreater(answer.times.decode.steps, 0)
            self.assertEqual(answer.message, {"role": "assistant", "content": self.text})
        self.assertEqual(asyncio.run(self.engine.chat_async(HELLO, self.params)).content, self.text)
        for events in (list(self.engine.submit_chat(chat, self.params)),
                       asyncio.run(gather(self.engine.submit_chat(HELLO, self.params)))):
            self.assertEqual({type(event) for event in events}, {ChatEvent})
            self.assertEqual([token for event in events for token in event.tokens], self.tokens)
            self.assertEqual("".join(event.content for event in events), self.text)
            self.assertTrue(events[-1].finished)
        plain = list(self.engine.submit(chat, self.params))
        self.assertEqual("".join(event.text for event in plain), self.text)
        self.assertEqual(plain[-1].prompt_tokens, len(self.prompt))

    def test_many_at_once(self):
        async def run():
            chats = [[{"role": "user", "content": f"Once upon a time {i}"}] for i in range(8)]
            return chats, await asyncio.gather(*(self.engine.chat_async(chat, self.params) for chat in chats))
        chats, together = asyncio.run(run())
        self.assertEqual([answer.content for answer in together],
                         [self.engine.chat(chat, self.params).content for chat in chats])

    def test_a_chat_goes_on(self):
        answer = self.engine.chat(HELLO, self.params)
        further = self.engine.render_chat([*HELLO, answer.message, {"role": "user", "content": "And then?"}])
        self.assertEqual(further.text, "<|begin|>user: Once upon a time<|end|>"
                                       f"assistant: {self.text}<|end|>user: And then?<|end|>assistant: ")

    def test_without_parameters_an_answer_may_fill_the_context(self):
        with mock.patch.object(self.engine, "_defaults", SamplingParams(**GREEDY)):
            answer = self.engine.chat(HELLO)
        self.assertEqual((answer.finish_reason, answer.prompt_tokens + answer.generated_tokens),
                         ("length", self.engine.max_context))
        self.assertEqual(answer.token_ids[:12], self.tokens)

    def test_stops_and_deadlines(self):
        stop = self.text[5:9]
        answer = self.engine.chat(HELLO, SamplingParams(max_tokens=12, stop=stop, **GREEDY))
        self.assertEqual((answer.finish_reason, answer.stop_reason), ("stop", stop))
        self.assertEqual(answer.content, self.text[:self.text.index(stop)])
        self.assertEqual(self.engine.chat(HELLO, self.params, deadline=0).finish_reason, "deadline")

    def test_arguments_of_rendering(self):
        begun = [*HELLO, {"role": "assistant", "content": "there was"}]
        request = self.engine.submit_chat(begun, self.params, add_generation_prompt=False, continue_final_message=True)
        ids = self.engine.render_chat(begun, add_generation_prompt=False, continue_final_message=True).token_ids()
        self.assertEqual([token for event in request for token in event.tokens], program_answer(ids, 12)[0])
        with self.assertRaisesRegex(InvalidArgument, "tools: the chat has been rendered already"):
            self.engine.chat(self.engine.render_chat(HELLO), tools=[])

    def test_a_loop_that_is_left_cancels(self):
        with make_engine(fault="delay=1:1ms") as engine:
            for event in engine.submit_chat(HELLO, SamplingParams(max_tokens=400, **GREEDY)):
                break
            until = time.monotonic() + LIMIT_S
            while engine.stats().finished_cancelled < 1:
                self.assertLess(time.monotonic(), until, engine.stats())
                time.sleep(0.005)
            request = engine.submit_chat(HELLO, SamplingParams(max_tokens=400, **GREEDY))
            with self.assertRaises(TimeoutError):
                while request.next(timeout=0) is not None:
                    pass
            request.cancel()
            events = list(request)
            self.assertEqual(events[-1].finish_reason, "cancelled")

    def test_a_list_of_chats(self):
        chats = [[{"role": "user", "content": f"Once upon a time {i}"}] for i in range(5)]
        with LLM(demo_model(), kv_gib=0.05, compute="f32", max_queue=3, log=None, chat_template=template(TURNS),
                 **PATIENT) as llm:
            outputs = llm.chat(chats, self.params)
            self.assertEqual([output.outputs[0].text for output in outputs],
                             [self.engine.chat(chat, self.params).content for chat in chats])
            (one,) = llm.chat(HELLO, self.params)
            self.assertEqual((one.prompt, one.prompt_token_ids),
                             ("<|begin|>user: Once upon a time<|end|>assistant: ", self.prompt))
            self.assertEqual((one.outputs[0].token_ids, one.outputs[0].text, one.outputs[0].reasoning),
                             (self.tokens, self.text, ""))
            begun = [*HELLO, {"role": "assistant", "content": "there was"}]
            (begun,) = llm.chat(begun, self.params, add_generation_prompt=False, continue_final_message=True)
            self.assertTrue(begun.prompt.endswith("assistant: there was"))
            with self.assertRaisesRegex(InvalidArgument, "messages"):
                llm.chat(["text"])
            (given,) = llm.generate(llm.engine.render_chat(HELLO), self.params)
            self.assertEqual((given.prompt, given.outputs[0].text), (one.prompt, self.text))
            with self.assertRaisesRegex(InvalidArgument, r"^chats\[1\]: messages\[0\]\.role"):
                llm.chat([HELLO, [{"content": "without a role"}]], self.params)
            with self.assertRaisesRegex(InvalidArgument, r"^messages\[0\]\.role"):
                llm.chat([{"content": "without a role"}], self.params)
            for name in ("messages", "tools", "add_generation_prompt", "now", "chat_template"):
                with self.assertRaisesRegex(InvalidArgument, f"^chat_template_kwargs: .* {name};"):
                    llm.chat(HELLO, self.params, chat_template_kwargs={name: []})
            self.assertIsNone(llm.generate("Once", SamplingParams(max_tokens=2))[0].outputs[0].reasoning)


class Reasoning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = make_engine(THINKS)
        cls.addClassCleanup(cls.engine.close)

    def test_it_is_told_from_the_content_wherever_events_cut(self):
        text = "Hm, <b>é</b>\n</think>\n\nYes </think> \U0001f600"
        expected = ("Hm, <b>é</b>", "Yes </think> \U0001f600")
        for size in (1, 2, 7, len(text)):
            reader = self.engine.render_chat(HELLO).reader()
            self.assertIsInstance(reader, ChatReader)
            self.assertTrue(reader.in_reasoning)
            pieces = [reader.read(text[at:at + size]) for at in range(0, len(text), size)]
            self.assertFalse(reader.in_reasoning)
            pieces.append(reader.read("", last=True))
            self.assertEqual(tuple("".join(part) for part in zip(*pieces)), expected, size)

    def test_what_may_be_a_mark_comes_with_the_last(self):
        reader = self.engine.render_chat(HELLO).reader()
        self.assertEqual(reader.read("Hm</thi"), ("Hm", ""))
        self.assertEqual(reader.read("", last=True), ("</thi", ""))

    def test_answers(self):
        params = SamplingParams(max_tokens=12, **GREEDY)
        chat = self.engine.render_chat(HELLO)
        self.assertEqual(chat.text, "<|begin|>Once upon a time\n<think>")
        _, text = program_answer(chat.token_ids(), 12)
        answer = self.engine.chat(HELLO, params)
        self.assertEqual((answer.reasoning, answer.content), (text, ""))
        self.assertEqual(answer.message, {"role": "assistant", "content": "", "reasoning_content": text})
        events = list(self.engine.submit_chat(HELLO, params))
        self.assertEqual("".join(event.reasoning for event in events), text)
        self.assertEqual("".join(event.text for event in events), text)


class SpecialTokens(unittest.TestCase):
    """A model whose marks of reasoning are special tokens; so is one that is called aa."""

    @classmethod
    def setUpClass(cls):
        model = SCRATCH / "special-marks"
        shutil.copytree(demo_model(), model)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (model / name).read_text().replace("<|begin|>", "aa").replace("<|end|>", "[/THINK]")
            (model / name).write_text(text)
        (model / "chat_template.jinja").write_text(
            "{% for message in messages %}{{ message.content }}{% endfor %}{% if thinks %}[THINK]x[/THINK]{% endif %}")
        cls.engine = Engine(model, kv_gib=0.05, compute="f32", log=None, **PATIENT)
        cls.addClassCleanup(cls.engine.close)
        cls.letter = cls.engine.tokenize("a", add_special_tokens=False)[0]

    def answer(self, token, **more):
        """What becomes of an answer that is one token, four times."""
        given = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logit_bias={token: 1000.0}, **more)
        return self.engine.chat(HELLO, given)

    def test_ordinary_tokens_that_spell_one_stay(self):
        self.assertEqual(self.engine.tokenize("aa", add_special_tokens=False), [0])
        answer = self.answer(self.letter)
        self.assertEqual((answer.token_ids, answer.content), ([self.letter] * 4, "aaaa"))
        (plain,) = LLM.generate(self.llm(), self.engine.render_chat(HELLO),
                                SamplingParams(max_tokens=4, temperature=0.0, logit_bias={self.letter: 1000.0}))
        self.assertEqual(plain.outputs[0].text, "aaaa")

    def test_special_tokens_are_left_out_unless_they_are_asked_for(self):
        answer = self.answer(0)
        self.assertEqual((answer.token_ids, answer.content), ([0] * 4, ""))
        self.assertEqual(self.answer(0, skip_special_tokens=False).content, "aa" * 4)
        self.assertEqual(self.answer(0, skip_special_tokens=False, stop="aaa").content, "")

    def test_events_say_what_is_special(self):
        for token, stop, special in ((self.letter, None, 0), (0, None, 8), (0, "aaaaaaaaa", 8)):
            params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, stop=stop,
                                    logit_bias={token: 1000.0})
            events = list(self.engine.submit_chat(HELLO, params))
            self.assertEqual("".join(event.text for event in events), "aa" * (4 if token == 0 else 2))
            self.assertEqual(sum(end - begin for event in events for begin, end in event.special), special)
            self.assertTrue(all(event.hides_special for event in events))
        self.assertFalse(any(event.hides_special for event in self.engine.submit("Once", SamplingParams(max_tokens=2))))

    def llm(self):
        llm = LLM.__new__(LLM)
        llm.engine, llm._has_tokenizer, llm._decoded = self.engine, True, {}
        return llm


class Templates(unittest.TestCase):
    def test_text_and_variables(self):
        self.assertEqual(fastdecode.render_template("{{ x }}{% if y %}é\0{% endif %}\n", {"x": [1, "ü"], "y": True}),
                         "[1, 'ü']é\0")
        self.assertEqual(fastdecode.render_template("{{ x | default('none') }}"), "none")
        now = datetime.datetime(2026, 1, 15, 12, 34, 56)
        self.assertEqual(fastdecode.render_template("{{ strftime_now('%d %b %Y') }}", now=now), "15 Jan 2026")

    def test_errors_have_a_place(self):
        with self.assertRaisesRegex(InvalidArgument, r"^template:2:\d+: "):
            fastdecode.render_template("a\n{{ x.y }}")
        with self.assertRaisesRegex(InvalidArgument, r"^mine\.jinja:3:\d+: "):
            fastdecode.render_template("a\n\n{% if %}", name="mine.jinja")
        with self.assertRaises(ResourceExhausted):
            fastdecode.render_template(ENDLESS)
        with self.assertRaisesRegex(TypeError, "context: "):
            fastdecode.render_template("", {"x": {1, 2}})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, ROOT = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(prefix="fd-python-chat-") as scratch:
        SCRATCH = pathlib.Path(scratch)
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
