"""Many prompts at once, as vLLM's LLM takes them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _errors as errors
from ._delivery import Mailbox, Stream
from .chat import ChatReader, Messages, RenderedChat
from .engine import Engine
from .events import Event, RequestTimes
from .prompts import Prompt, checked_keys
from .sampling import SamplingParams

# What is no variable of a template, but an argument of its own, or nothing that may be asked for.
_RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "now",
                       "chat_template", "tokenize")
# Seconds after which a queue that is full of requests of others is tried again.
_RETRY_S = 0.01


@dataclass
class Logprob:
    """The logprob of a token at some position. `rank`: 1 for the most likely token; None if it is not among those asked
    for. `decoded_token`: its text by itself; None without a tokenizer."""

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


# For each position the token that is there and the most likely ones, by id.
Logprobs = Dict[int, Logprob]


@dataclass
class CompletionOutput:
    """An answer. `token_ids` are without the stop token. `finish_reason` is "stop", "length", or "error".

    `stop_reason` is the stop string or the one of stop_token_ids that ended it; None for a stop token of the model.
    Of a chat `text` is the content alone, and `reasoning` what the model thought before it.
    """

    index: int
    text: str
    token_ids: List[int]
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Logprobs]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    reasoning: Optional[str] = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its n answers. `error`: what happened, where an answer's finish_reason is "error". `times`: of the
    first answer. `num_cached_tokens`: of the prompt's, those whose KV other requests had computed."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool = False
    prompt_logprobs: Optional[List[Optional[Logprobs]]] = None
    error: str = ""
    times: Optional[RequestTimes] = None
    num_cached_tokens: Optional[int] = None


@dataclass
class _Job:
    """One request of a call, from its prompt to its answers."""

    output: RequestOutput
    params: SamplingParams
    chat: Optional[RenderedChat] = None  # instead of the prompt's ids
    readers: List[ChatReader] = field(default_factory=list)  # of the answers to a chat
    cache_salt: Optional[str] = None
    stream: Optional[Stream] = None


class LLM:
    """A model that answers lists of prompts. `options` are those of Engine, which is `engine`."""

    def __init__(self, model: Union[str, os.PathLike[str]], **options: Any) -> None:
        self.engine = Engine(model, **options)
        self._has_tokenizer = self.engine.has_tokenizer
        self._decoded: Dict[int, str] = {}  # texts of single tokens

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend (its generation_config.json)."""
        return self.engine.default_sampling_params()

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]],
                 sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
                 use_tqdm: Any = None, *, prefix_cache: bool = True,
                 cache_salt: Optional[str] = None) -> List[RequestOutput]:
        """The answers to prompts, in their order. They run at once, as many as the engine's queue takes.

        A prompt is a text, {"prompt": text}, {"prompt_token_ids": ids}, a chat that Engine.render_chat has made, or, in a
        list of prompts, a list of ids. A dict may have a "cache_salt" of its own. `prefix_cache`, `cache_salt`: as
        Engine.submit has them.
        `sampling_params`: one for all, or one for each; None is what the model's makers recommend. `use_tqdm` is there
        for programs written for vLLM, and ignored. A prompt that cannot be raises an error before anything runs; a
        request that fails later has finish_reason "error". An exception, such as Ctrl-C, cancels all.
        """
        return self._answers(self._jobs(prompts, sampling_params, cache_salt), prefix_cache)

    def chat(self, messages: Union[Messages, Sequence[Messages]],
             sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None, use_tqdm: Any = None, *,
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Optional[Sequence[Any]] = None, chat_template_kwargs: Optional[Dict[str, Any]] = None,
             prefix_cache: bool = True, cache_salt: Optional[str] = None) -> List[RequestOutput]:
        """The answers to a chat or to several, as generate gives those to prompts.

        `messages`: of one chat, or a list of such. `sampling_params`: None is what the model's makers recommend, and
        answers that may go on to the end of the context. `prefix_cache`, `cache_salt`: as Engine.submit has them. The
        rest is as Engine.render_chat has it.
        """
        chats: Sequence[Any] = list(messages)
        several = not chats or not isinstance(chats[0], dict)
        variables = chat_template_kwargs or {}
        for name in _RESERVED_VARIABLES:
            if name in variables:
                raise errors.invalid(f"chat_template_kwargs: a template's variables cannot have the name {name}; leave it "
                                     "out")
        rendered = []
        for i, chat in enumerate(chats if several else [chats]):
            try:
                rendered.append(self.engine.render_chat(chat, tools=tools, add_generation_prompt=add_generation_prompt,
                                                        continue_final_message=continue_final_message, **variables))
            except (errors.InvalidArgument, errors.ResourceExhausted) as error:
                if not several:
                    raise
                raise type(error)(error.code, f"chats[{i}]: {error.message}") from None
        if sampling_params is None:
            sampling_params = self.engine.default_sampling_params()
            sampling_params.max_tokens = None
        return self._answers(self._jobs(rendered, sampling_params, cache_salt), prefix_cache)

    def _answers(self, jobs: List[_Job], prefix_cache: bool) -> List[RequestOutput]:
        mailbox = Mailbox()
        running: Dict[int, _Job] = {}
        try:
            submitted = 0
            while submitted < len(jobs) or mailbox.unfinished or mailbox.events:
                submitted = self._submit_some(jobs, submitted, prefix_cache, mailbox, running)
                event = self.engine._delivery.take(mailbox)
                if event is not None:
                    self._add(running[event.request_id], event)
                    if running[event.request_id].output.finished:
                        del running[event.request_id]
        except BaseException:
            for job in jobs:
                if job.stream is not None:
                    self.engine._abandon(job.stream)
            raise
        return [job.output for job in jobs]

    def _jobs(self, prompts: Any, sampling_params: Any, cache_salt: Optional[str]) -> List[_Job]:
        if isinstance(prompts, (str, dict, RenderedChat)):
            prompts = [prompts]
        prompts = list(prompts)
        if any(isinstance(prompt, int) for prompt in prompts):
            raise TypeError('prompts: they are integers; token ids of one prompt are {"prompt_token_ids": [...]}')
        if sampling_params is None:
            sampling_params = self.engine.default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise errors.invalid(f"sampling_params: there are {len(sampling_params)} for {len(prompts)} prompts")
        jobs = []
        for i, (prompt, params) in enumerate(zip(prompts, sampling_params)):
            try:
                self.engine._check_choices(params)
                text, ids = self._read_prompt(prompt)
                if len(ids) >= self.engine.max_context:
                    raise errors.invalid(f"prompt: {len(ids)} tokens leave no room in the context of "
                                         f"{self.engine.max_context} (max_context)")
            except errors.InvalidArgument as error:
                raise errors.InvalidArgument(error.code, f"prompts[{i}]: {error.message}") from None
            output = RequestOutput("", text, ids, [CompletionOutput(k, "", []) for k in range(params.n)])
            job = _Job(output, params, cache_salt=cache_salt)
            if isinstance(prompt, dict) and prompt.get("cache_salt") is not None:
                job.cache_salt = prompt["cache_salt"]
            if isinstance(prompt, RenderedChat):
                job.chat, job.readers = prompt, [prompt.reader() for _ in range(params.n)]
            for answer in output.outputs:
                if params.logprobs is not None:
                    answer.logprobs, answer.cumulative_logprob = [], 0.0
                if job.chat is not None:
                    answer.reasoning = ""
            jobs.append(job)
        return jobs

    def _read_prompt(self, prompt: Any) -> Tuple[Optional[str], List[int]]:
        text: Optional[str] = None
        ids = prompt
        if isinstance(prompt, dict):
            checked_keys(prompt)
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        elif isinstance(prompt, str):
            text, ids = prompt, None
        elif isinstance(prompt, RenderedChat):
            text, ids = prompt.text, prompt.token_ids()
        if ids is None:
            ids = self.engine.tokenize(text)  # type: ignore[arg-type]
        ids = list(ids)
        if not ids:
            raise errors.invalid("prompt: it has no tokens; the model needs at least one")
        return text, ids

    def _submit_some(self, jobs: List[_Job], submitted: int, prefix_cache: bool, mailbox: Mailbox,
                     running: Dict[int, _Job]) -> int:
        """Submits what the queue takes; returns how many of the jobs are submitted then."""
        while submitted < len(jobs):
            job = jobs[submitted]
            try:
                prompt = job.output.prompt_token_ids if job.chat is None else job.chat
                job.stream = self.engine._submit(prompt, job.params, mailbox, None, True, prefix_cache=prefix_cache,
                                                 cache_salt=job.cache_salt)
            except errors.QueueFull:
                if mailbox.unfinished or mailbox.events:
                    break
                stats = self.engine.stats()
                if stats.requests_running + stats.requests_waiting == 0:
                    raise  # nothing will end that makes room
                time.sleep(_RETRY_S)
                continue
            except errors.InvalidArgument as error:
                raise errors.InvalidArgument(error.code, f"prompts[{submitted}]: {error.message}") from None
            job.output.request_id = str(job.stream.id)
            running[job.stream.id] = job
            submitted += 1
        return submitted

    def _add(self, job: _Job, event: Event) -> None:
        """What an event adds to an answer."""
        output = job.output
        if event.kind == "prompt":
            ids, logprobs, tops = event.tokens, event.logprobs or [], event.top_logprobs
            rest = [self._logprobs(ids[i], logprobs[i], tops[i] if tops else []) for i in range(1, len(ids))]
            output.prompt_logprobs = [None, *rest]
            return
        answer = output.outputs[event.choice]
        if not job.readers:
            answer.text += event.text
        else:
            reasoning, content = job.readers[event.choice].read_event(event)
            answer.reasoning += reasoning  # type: ignore[operator]
            answer.text += content
        answer.token_ids.extend(event.tokens)
        if event.logprobs is not None and answer.logprobs is not None:
            tops = event.top_logprobs
            for i, (token, logprob) in enumerate(zip(event.tokens, event.logprobs)):
                answer.cumulative_logprob += logprob  # type: ignore[operator]
                answer.logprobs.append(self._logprobs(token, logprob, tops[i] if tops else []))
        if not event.finished:
            return
        answer.finish_reason = event.finish_reason
        answer.stop_reason = event.stop_reason
        if isinstance(event.stop_reason, int) and event.stop_reason not in (job.params.stop_token_ids or ()):
            answer.stop_reason = None
        output.finished = all(one.finished() for one in output.outputs)
        output.error = output.error or event.error
        output.num_cached_tokens = event.cached_tokens
        if event.choice == 0:
            output.times = event.times

    def _logprobs(self, token: int, logprob: Optional[float], top: Sequence[Tuple[int, float]]) -> Logprobs:
        out = {one: Logprob(value, rank, self._text(one)) for rank, (one, value) in enumerate(top, 1)}
        if token not in out and logprob is not None:
            out[token] = Logprob(logprob, None, self._text(token))
        return out

    def _text(self, token: int) -> Optional[str]:
        if not self._has_tokenizer:
            return None
        text = self._decoded.get(token)
        if text is None:
            text = self._decoded[token] = self.engine.detokenize([token])
        return text
