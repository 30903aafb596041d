"""An engine, and the requests that it serves."""

from __future__ import annotations

import atexit
import ctypes
import logging
import math
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from . import _errors as errors
from . import _library as c
from ._delivery import Delivery, Mailbox, Stream
from .chat import ChatAnswer, Messages, Now, RenderedChat, fill_input
from .prompts import Prompt, PromptPart, c_parts, fill_prefix_cache, fill_prompt
from .request import ChatRequest, Request
from .sampling import SamplingParams, c_text, checked_float, id_array

_NS = 1_000_000_000
# By the levels of fd_log_sink.
_LOG_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
# Seconds between two looks whether a signal has come, while a function of the library waits.
_SIGNAL_CHECK_S = 0.1


Log = Union[None, logging.Logger, Callable[[int, str], None]]


class Stats(NamedTuple):
    """What an engine has counted since it was created, and what it has now: fd_stats, which describes each field."""

    homes: int
    homes_up: int
    draining: int
    requests_waiting: int
    requests_running: int
    requests_undelivered: int
    requests_submitted: int
    requests_refused: int
    finished_stop: int
    finished_length: int
    finished_cancelled: int
    finished_error: int
    finished_deadline: int
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    steps: int
    rows: int
    hops: int
    s_busy_ns: int
    kv_pages: int
    kv_pages_used: int
    now_ns: int
    created_ns: int
    last_step_ns: int
    recoveries: int
    recovered: int
    choices_waiting: int
    choices_running: int
    prefix_tokens: int
    cached_tokens: int
    kv_pages_cached: int


class HomeStats(NamedTuple):
    """The same of one home: fd_home_stats, which describes each field."""

    up: bool
    name: str
    hops: int
    work_ns: int
    last_reply_ns: int
    losses: int
    kv_pages: int
    kv_pages_used: int
    cached_tokens: int
    kv_pages_cached: int


class _Use:
    """Keeps an engine from being destroyed while one of its functions runs."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Any:
        return self._engine._enter_call()

    def __exit__(self, *_: Any) -> None:
        self._engine._leave_call()


def _option_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(_option_value(name, one) for one in value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"{name}: {value!r} is not text, a number, a path, a truth value or a list of these")


def _make_log_sink(log: Log) -> Any:
    if isinstance(log, logging.Logger):
        logger = log

        def to_logger(_: Any, level: int, message: bytes) -> None:
            logger.log(_LOG_LEVELS[min(max(level, 0), 3)], "%s", message.decode("utf-8", "replace"))

        return c.fd_log_sink(to_logger)
    if log is None:
        return c.fd_log_sink(lambda user, level, message: None)
    function = log

    def to_function(_: Any, level: int, message: bytes) -> None:
        function(_LOG_LEVELS[min(max(level, 0), 3)], message.decode("utf-8", "replace"))

    return c.fd_log_sink(to_function)


# Engines that are open. A thread of an engine that logs when Python is gone would end the process.
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()


class Engine:
    """Loads a model and serves any number of requests at once, from any threads and asyncio loops.

    `options` are those that `fastdecode generate --help` lists, with _ for -, such as max_context=4096,
    core_plan="split" or homes=["local", "hostb:7471"]. `log` is a logger, a function that takes a level of the logging
    module and a message, or None; the engine's threads call it, and it must not call what waits for them: close, drain,
    and the reading of events.

    Only the process that made an engine can use it: a forked child cannot.
    """

    def __init__(self, model: Union[str, os.PathLike[str]], *, log: Log = logging.getLogger("fastdecode"),
                 **options: Any) -> None:
        self._handle: Any = None
        self._library = library = c.load()
        self._log_sink = _make_log_sink(log)  # lives as long as the engine
        self._users: Dict[int, int] = {}  # calls of each thread that use the handle
        self._closer = 0  # the thread that closes
        self._destroyed = False
        self._destroyed_by_call = False  # by the last call that uses the handle
        self._defaults: Optional[SamplingParams] = None
        given = library.fd_options_create()
        try:
            for name, value in dict(options, model=model).items():
                if value is not None:
                    c.check(library.fd_options_set(given, c_text("option", name.replace("_", "-")),
                                                   c_text(name, _option_value(name, value))))
            quiet = isinstance(log, logging.Logger) and not log.isEnabledFor(logging.DEBUG)
            library.fd_options_set_log(given, self._log_sink, None, 1 if quiet else 0)
            handle = ctypes.POINTER(c.fd_engine)()
            c.check(library.fd_engine_create(given, ctypes.byref(handle)))
        finally:
            library.fd_options_destroy(given)
        try:
            self._delivery = Delivery(handle)
        except BaseException:
            library.fd_engine_destroy(handle)
            raise
        self._idle = threading.Condition(self._delivery.lock)  # no call uses the handle any more, or it is gone
        self._handle = handle
        _open_engines.add(self)

    # ---- Its end
    def close(self) -> None:
        """Cancels what is left, waits for the engine's threads and frees everything. May be called again."""
        delivery, thread = self._delivery, threading.get_ident()
        if delivery.pid != os.getpid():
            return  # the engine is the parent's
        with delivery.lock:
            if not delivery.closing:
                self._closer = thread
                for stream in list(delivery.streams.values()):
                    self._library.fd_cancel(self._handle, stream.id)
                delivery.end()
            # Where a signal handler closes, it may have interrupted a call of this very thread, which destroys then in
            # its end, or another close.
            if thread in self._users:
                self._destroyed_by_call = True
                return
            if self._closer != thread:
                while not self._destroyed:
                    self._idle.wait()
                return
            while self._users:
                self._idle.wait()
        self._destroy()

    def _destroy(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.fd_engine_destroy(handle)
        _open_engines.discard(self)
        with self._delivery.lock:
            self._destroyed = True
            self._idle.notify_all()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _enter_call(self) -> Any:
        self._delivery.check_open()  # before the lock, which is in any state in a forked child
        with self._delivery.lock:
            self._delivery.check_open()
            thread = threading.get_ident()
            self._users[thread] = self._users.get(thread, 0) + 1
            return self._handle

    def _leave_call(self) -> None:
        with self._delivery.lock:
            thread = threading.get_ident()
            self._users[thread] -= 1
            if self._users[thread] == 0:
                del self._users[thread]
            if not self._delivery.closing or self._users:
                return
            self._idle.notify_all()
            if not self._destroyed_by_call:
                return
        self._destroy()

    # ---- Requests
    def submit(self, prompt: Prompt, params: Optional[SamplingParams] = None, *, deadline: Optional[float] = None,
               add_special_tokens: bool = True, pause_events: bool = False, prefix_cache: bool = True,
               cache_salt: Optional[str] = None) -> Request:
        """Gives the engine a request, and does not wait for its answer.

        `params`: None is what the model's makers recommend. `deadline`: seconds from now after which the request ends
        with what it has. `add_special_tokens`: of text and parts; as the tokenizer's template says (bos). Special
        tokens in a text become their ids; parts say of each whether they do. Of a chat, for which submit_chat is, the
        answer's text is as the model writes it. `pause_events`: an event says so when the request's home was lost, and
        it is computed again elsewhere. `prefix_cache`: False uses nothing that is kept of requests which have ended,
        and keeps nothing of this one. `cache_salt`: what is kept is for requests with the same salt alone. Raises
        QueueFull if there are too many.
        """
        return Request(self, self._submit(prompt, params, Mailbox(), deadline, add_special_tokens,
                                          pause_events=pause_events, prefix_cache=prefix_cache, cache_salt=cache_salt))

    def _submit(self, prompt: Prompt, params: Optional[SamplingParams], mailbox: Mailbox, deadline: Optional[float],
                add_special_tokens: bool, *, pause_events: bool = False, prefix_cache: bool = True,
                cache_salt: Optional[str] = None) -> Stream:
        if params is None:
            params = self.default_sampling_params()
        if isinstance(prompt, dict) and prompt.get("cache_salt") is not None:
            cache_salt = prompt["cache_salt"]
        request = c.fd_request()
        library = self._library
        library.fd_request_init(ctypes.byref(request), ctypes.sizeof(request))
        params.fill(request)
        request.pause_events = pause_events
        fill_prefix_cache(request, prefix_cache, cache_salt)
        if isinstance(prompt, RenderedChat):
            prompt.fill(request)
        else:
            fill_prompt(request, prompt)
            request.add_special_tokens = add_special_tokens
        if deadline is not None:
            seconds = checked_float("deadline", deadline)
            if not seconds >= 0:
                raise errors.invalid(f"deadline: {deadline!r} is not a time from now")
            if seconds < math.inf:
                request.deadline_ns = min(time.monotonic_ns() + int(seconds * _NS), 2**64 - 1)
        number = ctypes.c_uint64()
        with _Use(self) as handle:
            stream = self._delivery.add(mailbox, params.stop_strings(), params.n)
            request.user = stream.key
            status = library.fd_submit(handle, ctypes.byref(request), ctypes.byref(number))
            stream.id = number.value
        if not status:
            return stream
        self._delivery.drop(stream)
        try:
            c.check(status)
        except errors.ResourceExhausted as error:
            raise errors.QueueFull(error.code, error.message) from None
        raise AssertionError("a status that is no error")

    def _cancel(self, stream: Stream) -> None:
        """Also from finalisers, and so in any thread, whatever it is doing."""
        delivery = self._delivery
        if stream.finished or delivery.closing or delivery.pid != os.getpid():
            return
        with delivery.lock:
            if not delivery.closing:
                self._library.fd_cancel(self._handle, stream.id)

    def _abandon(self, stream: Stream) -> None:
        """Cancels it, as nobody will read its events."""
        self._cancel(stream)
        self._delivery.drop(stream)

    def drain(self, timeout: Optional[float] = None) -> int:
        """Takes no further request. Returns how many have not ended, when none is left or after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            wait = _SIGNAL_CHECK_S if until is None else min(max(until - time.monotonic(), 0), _SIGNAL_CHECK_S)
            with _Use(self) as handle:
                left = int(self._library.fd_drain(handle, int(wait * _NS)))
            if left == 0 or (until is not None and time.monotonic() >= until):
                return left

    # ---- Chats
    @property
    def has_chat_template(self) -> bool:
        """Without one chats are refused."""
        with _Use(self) as handle:
            return bool(self._library.fd_has_chat_template(handle))

    @property
    def chat_template_missing_reason(self) -> str:
        """Why there is none, and what to do about it."""
        with _Use(self) as handle:
            return str(self._library.fd_chat_template_missing_reason(handle).decode("utf-8", "replace"))

    def render_chat(self, messages: Messages, tools: Optional[Sequence[Any]] = None,
                    documents: Optional[Sequence[Any]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, now: Now = None, **variables: Any) -> RenderedChat:
        """A chat as the model's template writes it.

        `add_generation_prompt`: the prompt ends where the assistant's answer begins. `continue_final_message`: it ends
        with the last message's text, and the answer goes on with that; then add_generation_prompt must be False. `now`:
        the time that the template is told. `variables`: further values for the template.
        """
        given = c.fd_chat_input()
        self._library.fd_chat_input_init(ctypes.byref(given), ctypes.sizeof(given))
        given.add_generation_prompt = bool(add_generation_prompt)
        given.continue_final_message = bool(continue_final_message)
        fill_input(given, now, messages=messages, tools=tools, documents=documents, variables=variables or None)
        chat = ctypes.POINTER(c.fd_chat)()
        with _Use(self) as handle:
            c.check(self._library.fd_chat_render(handle, ctypes.byref(given), ctypes.byref(chat)))
        return RenderedChat(self, chat)

    def submit_chat(self, messages: Union[Messages, RenderedChat], params: Optional[SamplingParams] = None, *,
                    deadline: Optional[float] = None, prefix_cache: bool = True, cache_salt: Optional[str] = None,
                    **rendering: Any) -> ChatRequest:
        """As submit, of a chat: its events have `reasoning` and `content`.

        `params`: None is what the model's makers recommend, and an answer that may go on to the end of the context.
        `rendering`: of the messages, as render_chat has it, such as tools=[...].
        """
        if not isinstance(messages, RenderedChat):
            messages = self.render_chat(messages, **rendering)
        elif rendering:
            raise errors.invalid(f"{', '.join(sorted(rendering))}: the chat has been rendered already")
        if params is None:
            params = self.default_sampling_params()
            params.max_tokens = None
        self._check_choices(params)
        readers = [messages.reader() for _ in range(params.n)]
        stream = self._submit(messages, params, Mailbox(), deadline, False, prefix_cache=prefix_cache,
                              cache_salt=cache_salt)
        return ChatRequest(self, stream, readers)

    def _check_choices(self, params: SamplingParams) -> None:
        """For what is made for each choice before the library refuses too many."""
        if params.n > self.max_choices:
            raise errors.invalid(f"n: {params.n} is more than {self.max_choices}, the most answers of one request here")

    @staticmethod
    def _check_one_answer(params: Optional[SamplingParams]) -> None:
        if params is not None and params.n != 1:
            raise errors.invalid(f"n: {params.n} is more than the one answer that this returns; submit_chat and LLM.chat "
                                 "have several")

    def chat(self, messages: Union[Messages, RenderedChat], params: Optional[SamplingParams] = None, *,
             deadline: Optional[float] = None, **rendering: Any) -> ChatAnswer:
        """The answer to a chat, with arguments of submit_chat. An exception, such as Ctrl-C, cancels it."""
        self._check_one_answer(params)
        answer = ChatAnswer()
        for event in self.submit_chat(messages, params, deadline=deadline, **rendering):
            answer.add(event)
        return answer

    async def chat_async(self, messages: Union[Messages, RenderedChat], params: Optional[SamplingParams] = None, *,
                         deadline: Optional[float] = None, **rendering: Any) -> ChatAnswer:
        """The same for an asyncio loop."""
        self._check_one_answer(params)
        answer = ChatAnswer()
        async for event in self.submit_chat(messages, params, deadline=deadline, **rendering):
            answer.add(event)
        return answer

    # ---- Tokens and text
    def tokenize(self, prompt: Union[str, Sequence[PromptPart]], add_special_tokens: bool = True) -> List[int]:
        """Token ids of a text, whose special tokens become their ids, or of parts."""
        given = [PromptPart(prompt, special=True)] if isinstance(prompt, str) else list(prompt)
        parts = c_parts(given)
        capacity = 16 + sum(part.text_bytes + part.id_count for part in parts)
        count = ctypes.c_size_t()
        with _Use(self) as handle:
            while True:
                ids = (ctypes.c_int32 * capacity)()
                c.check(self._library.fd_tokenize(handle, parts, len(given), add_special_tokens, ids, capacity,
                                                  ctypes.byref(count)))
                if count.value <= capacity:
                    return list(ids[:count.value])
                capacity = count.value

    def detokenize(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all but special tokens, or of all."""
        array, count = id_array("ids", ids)
        text, text_bytes = c.owned_text(), ctypes.c_size_t()
        detokenize = self._library.fd_detokenize if skip_special_tokens else self._library.fd_detokenize_special
        with _Use(self) as handle:
            c.check(detokenize(handle, array, count, ctypes.byref(text), ctypes.byref(text_bytes)))
        copy = ctypes.string_at(text, text_bytes.value).decode("utf-8", "replace")
        self._library.fd_string_free(text)
        return copy

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for inside of a text, often not UTF-8 by itself; a special token's name.

        Empty if it is no token, or there is no tokenizer.
        """
        (one,), _ = id_array("token_id", [token_id])
        capacity = 64
        with _Use(self) as handle:
            while True:
                buffer = ctypes.create_string_buffer(capacity)
                count = int(self._library.fd_token_bytes(handle, one, buffer, capacity))
                if count <= capacity:
                    return buffer.raw[:count]
                capacity = count

    @property
    def vocab_size(self) -> int:
        with _Use(self) as handle:
            return int(self._library.fd_vocab_size(handle))

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        with _Use(self) as handle:
            return int(self._library.fd_max_context(handle))

    @property
    def max_choices(self) -> int:
        """The largest n of a request."""
        with _Use(self) as handle:
            return int(self._library.fd_max_choices(handle))

    @property
    def has_tokenizer(self) -> bool:
        """Without one text is refused, and token ids work."""
        with _Use(self) as handle:
            return bool(self._library.fd_has_tokenizer(handle))

    @property
    def tokenizer_missing_reason(self) -> str:
        with _Use(self) as handle:
            return str(self._library.fd_tokenizer_missing_reason(handle).decode("utf-8", "replace"))

    def default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend (its generation_config.json)."""
        if self._defaults is None:
            request = c.fd_request()
            self._library.fd_request_init(ctypes.byref(request), ctypes.sizeof(request))
            with _Use(self) as handle:
                self._library.fd_default_sampling(handle, ctypes.byref(request))
            self._defaults = SamplingParams(
                temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p,
                repetition_penalty=request.repetition_penalty)
        return SamplingParams(**vars(self._defaults))

    # ---- What it says of itself
    def describe(self) -> str:
        """What was found and chosen, for people: cores, memory, ISA, homes, links."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_engine_describe(handle))

    def stats(self) -> Stats:
        """Counters since the engine was created, and what it has now. Never blocks on the model or a home."""
        stats = c.fd_stats()
        with _Use(self) as handle:
            self._library.fd_engine_stats(handle, ctypes.byref(stats))
        return Stats(*(getattr(stats, name) for name in Stats._fields))

    def homes(self) -> List[HomeStats]:
        """The same of each home. Never blocks on one."""
        found: List[HomeStats] = []
        stats = c.fd_home_stats()
        with _Use(self) as handle:
            while self._library.fd_engine_home(handle, len(found), ctypes.byref(stats)) == 1:
                values = {name: getattr(stats, name) for name in HomeStats._fields}
                values.update(up=bool(stats.up), name=stats.name.decode("utf-8", "replace"))
                found.append(HomeStats(**values))
        return found

    def front_cores(self) -> List[int]:
        """The cores that the option front_cores leaves to threads of this program."""
        with _Use(self) as handle:
            count = int(self._library.fd_engine_front_cores(handle, None, 0))
            cores = (ctypes.c_int32 * count)()
            self._library.fd_engine_front_cores(handle, cores, count)
        return list(cores)

    def model_describe(self) -> str:
        """The model and its tokenizer, as JSON: fd_model_describe, which describes each field."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_model_describe(handle))

    def stats_json(self) -> str:
        """Counters and durations since the last reset, as JSON (docs/GLOSSARY.md names the fields)."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_engine_stats_json(handle))

    def reset_stats(self) -> None:
        with _Use(self) as handle:
            self._library.fd_engine_stats_reset(handle)

    def pages_json(self) -> str:
        """KV pages of each home as it counted them last, and how long ago, as JSON."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_engine_pages_json(handle))
