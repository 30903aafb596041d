"""An engine, and the requests that it serves.

How events come to their readers. fd_poll takes the events of every request of an engine, one thread at a time, so
whoever waits polls for all: it copies what comes and puts each event into the mailbox of its request. Of the threads
that wait, one leads: it sleeps on the engine's event descriptor, and the others on conditions of their own; when it
has what it waited for it leaves the lead to one of them. An asyncio loop in which somebody waits watches the same
descriptor. A pipe wakes the leader when another thread or a loop has put something into its mailbox.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, AsyncIterator, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Union

from . import _errors as errors
from . import _library as c
from .events import Event, copy_event
from .sampling import SamplingParams, c_text, checked_float, id_array, utf8

# Events that one fd_poll takes at most.
_BATCH = 256
_NS = 1_000_000_000
# By the levels of fd_log_sink.
_LOG_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
# Seconds between two looks whether a signal has come, while a function of the library waits.
_SIGNAL_CHECK_S = 0.1


@dataclass
class PromptPart:
    """A piece of a prompt: text, or token ids as they are.

    What users typed is given with special=False, so that nobody can write a special token by its name; what the program
    wrote around it, such as a chat template's text, with special=True.
    """

    text: str = ""
    special: bool = False
    ids: Optional[Sequence[int]] = None


# Text; token ids; {"prompt": text} or {"prompt_token_ids": ids}; or parts.
Prompt = Union[str, Sequence[int], Dict[str, Any], Sequence[PromptPart]]
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


class Mailbox:
    """Events of one request, or of several that are read together, and who waits for them."""

    __slots__ = ("events", "unfinished", "waiting", "condition", "future")

    def __init__(self) -> None:
        self.events: Deque[Event] = deque()
        self.unfinished = 0  # requests whose last event is not in `events` yet, or was not
        self.waiting = False
        self.condition: Optional[threading.Condition] = None  # of the thread that waits, unless it leads
        self.future: Optional[asyncio.Future[None]] = None  # of the task that waits


class Stream:
    """A request as the engine knows it."""

    __slots__ = ("key", "id", "mailbox", "stops", "finished")

    def __init__(self, key: int, mailbox: Mailbox, stops: List[str]) -> None:
        self.key = key  # comes back with each event; the id is known too late, when another thread may have polled
        self.id = 0
        self.mailbox = mailbox
        self.stops = stops
        self.finished = False  # its last event is in the mailbox, or was


class _Watch:
    """An asyncio loop that watches for events, by a copy of the engine's descriptor, which outlives the engine's own."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, event_fd: int) -> None:
        self.loop = loop
        self._engine = weakref.ref(engine)
        self._fd = os.dup(event_fd)
        loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        engine = self._engine()
        if engine is None or not engine._deliver(self.loop):
            self._end()

    def _end(self) -> None:
        if self._fd < 0:
            return
        if not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1

    def end(self) -> None:
        """From any thread."""
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:  # no loop runs in this thread
            here = False
        try:
            if not here and self.loop.is_running():
                self.loop.call_soon_threadsafe(self._end)
                return
        except RuntimeError:  # it was closed just now
            pass
        self._end()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


class _Use:
    """Keeps an engine from being destroyed while one of its functions runs."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Any:
        engine = self._engine
        engine._check_process()
        with engine._lock:
            engine._check_open()
            engine._users += 1
            return engine._handle

    def __exit__(self, *_: Any) -> None:
        engine = self._engine
        with engine._lock:
            engine._users -= 1
            if engine._closing:
                engine._idle.notify_all()


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


def _wake_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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
    pages_json, and the reading of events.

    Only the process that made an engine can use it: a forked child cannot.
    """

    def __init__(self, model: Union[str, os.PathLike[str]], *, log: Log = logging.getLogger("fastdecode"),
                 **options: Any) -> None:
        self._handle: Any = None
        self._pid = os.getpid()
        self._library = library = c.load()
        self._log_sink = _make_log_sink(log)  # lives as long as the engine
        # An RLock, as a request that the garbage collector finds is cancelled in whatever thread that runs.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._users = 0
        self._closing = False
        self._streams: Dict[int, Stream] = {}
        self._next_key = 1
        self._leader: Optional[Mailbox] = None
        self._leader_thread = 0
        self._followers: Set[Mailbox] = set()
        self._watches: List[_Watch] = []
        self._defaults: Optional[SamplingParams] = None
        self._batch = (c.fd_event * _BATCH)()
        self._batch[0].struct_size = ctypes.sizeof(c.fd_event)
        self._slots = list(self._batch)  # an index into the array would make an object each time
        self._taken = self._copied = 0  # of the batch
        self._wake_read = self._wake_write = -1

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
        self._handle = handle
        try:
            self._event_fd = library.fd_engine_event_fd(handle)
            if self._event_fd < 0:
                raise errors.error_of(errors.RESOURCE_EXHAUSTED,
                                      "the process has no file descriptor left for the events of an engine")
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._poller = select.poll()
            self._poller.register(self._event_fd, select.POLLIN)
            self._poller.register(self._wake_read, select.POLLIN)
        except BaseException:
            self.close()
            raise
        _open_engines.add(self)

    # ---- Its end
    def close(self) -> None:
        """Cancels what is left, waits for the engine's threads and frees everything. May be called again."""
        if self._pid != os.getpid():
            return  # the engine is the parent's
        with self._lock:
            handle, self._handle = self._handle, None
            self._closing = True
            if not handle:
                return
            for stream in list(self._streams.values()):
                self._library.fd_cancel(handle, stream.id)
            self._wake_all()
            # Whoever leads in this very thread has been interrupted by a signal handler that called this.
            while self._users or (self._leader is not None and self._leader_thread != threading.get_ident()):
                self._idle.wait()
            self._streams.clear()
            for watch in self._watches:
                watch.end()
            self._watches.clear()
        self._library.fd_engine_destroy(handle)
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake_write = -1
        _open_engines.discard(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise errors.EngineClosed(errors.UNAVAILABLE, f"this engine belongs to process {self._pid}, and this is "
                                      f"{os.getpid()}: an engine does not survive fork(), so make one in each process")

    def _check_open(self) -> None:
        if self._closing:
            raise errors.EngineClosed(errors.UNAVAILABLE, "the engine is closed")

    # ---- Requests
    def submit(self, prompt: Prompt, params: Optional[SamplingParams] = None, *, deadline: Optional[float] = None,
               add_special_tokens: bool = True) -> Request:
        """Gives the engine a request, and does not wait for its answer.

        `params`: None is what the model's makers recommend. `deadline`: seconds from now after which the request ends
        with what it has. `add_special_tokens`: of text and parts; as the tokenizer's template says (bos). Special
        tokens in a text become their ids; parts say of each whether they do. Raises QueueFull if there are too many.
        """
        mailbox = Mailbox()
        return Request(self, self._submit(prompt, params, mailbox, deadline, add_special_tokens))

    def _submit(self, prompt: Prompt, params: Optional[SamplingParams], mailbox: Mailbox, deadline: Optional[float],
                add_special_tokens: bool) -> Stream:
        if params is None:
            params = self.default_sampling_params()
        request = c.fd_request()
        library = self._library
        library.fd_request_init(ctypes.byref(request), ctypes.sizeof(request))
        params.fill(request)
        _fill_prompt(request, prompt)
        request.add_special_tokens = add_special_tokens
        if deadline is not None:
            seconds = checked_float("deadline", deadline)
            if not seconds >= 0:
                raise errors.invalid(f"deadline: {deadline!r} is not a time from now")
            if seconds < math.inf:
                request.deadline_ns = min(time.monotonic_ns() + int(seconds * _NS), 2**64 - 1)
        number = ctypes.c_uint64()
        with _Use(self) as handle:
            with self._lock:
                stream = Stream(self._next_key, mailbox, params.stop_strings())
                self._next_key += 1
                self._streams[stream.key] = stream
                mailbox.unfinished += 1
            request.user = stream.key
            status = library.fd_submit(handle, ctypes.byref(request), ctypes.byref(number))
            stream.id = number.value
            if not status:
                return stream
            with self._lock:
                del self._streams[stream.key]
                mailbox.unfinished -= 1
        try:
            c.check(status)
        except errors.ResourceExhausted as error:
            raise errors.QueueFull(error.code, error.message) from None
        raise AssertionError("a status that is no error")

    def _cancel(self, stream: Stream) -> None:
        """Also from finalisers, and so in any thread, whatever it is doing."""
        if stream.finished or self._closing or self._pid != os.getpid():
            return
        with self._lock:
            if not self._closing:
                self._library.fd_cancel(self._handle, stream.id)

    def _abandon(self, stream: Stream) -> None:
        """Cancels it, as nobody will read its events."""
        self._cancel(stream)
        self._streams.pop(stream.key, None)

    # ---- Events
    def _poll(self, loop: Optional[asyncio.AbstractEventLoop] = None) -> None:
        """Takes what events there are and wakes who waits for them; with the lock held. `loop`: the one that calls."""
        if self._copied == self._taken:
            count = self._library.fd_poll(self._handle, self._batch, _BATCH, 0)
            if count < 0:
                raise errors.error_of(errors.RESOURCE_EXHAUSTED, "no memory for the events of requests")
            self._copied, self._taken = 0, count
        slots, streams = self._slots, self._streams
        while self._copied < self._taken:
            slot = slots[self._copied]
            stream = streams.get(slot.user)
            if stream is None:  # nobody reads it
                self._copied += 1
                continue
            event = copy_event(slot, stream.stops)
            mailbox = stream.mailbox
            append = mailbox.events.append
            if event.finish_reason is not None:
                stream.finished = True
                del streams[stream.key]
                mailbox.unfinished -= 1
            # An exception that a signal brings (Ctrl-C) comes after the call: no event is lost, and none comes twice.
            self._copied += 1
            append(event)
            if mailbox.waiting:
                self._wake(mailbox, loop)

    def _wake(self, mailbox: Mailbox, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        future = mailbox.future
        if future is not None:
            mailbox.future = None
            owner = future.get_loop()
            if owner is loop:
                _wake_future(future)
                return
            try:
                owner.call_soon_threadsafe(_wake_future, future)
            except RuntimeError:  # the loop is closed
                pass
        elif mailbox is self._leader:
            if self._leader_thread != threading.get_ident():
                self._wake_leader()
        elif mailbox.condition is not None:
            mailbox.condition.notify()

    def _wake_leader(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:  # there is enough in it
            pass

    def _wake_all(self) -> None:
        for mailbox in {stream.mailbox for stream in self._streams.values()}:
            if mailbox.waiting:
                self._wake(mailbox, None)
        for mailbox in self._followers:
            assert mailbox.condition is not None
            mailbox.condition.notify()
        if self._leader is not None:
            self._wake_leader()

    def _take(self, mailbox: Mailbox, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event of a mailbox; None: all of its requests have ended. TimeoutError after so many seconds."""
        self._check_process()
        try:
            return mailbox.events.popleft()
        except IndexError:
            pass
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._begin_wait(mailbox)
            try:
                while not mailbox.events:
                    if not mailbox.unfinished:
                        return None
                    self._check_open()
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left < 0:
                        raise TimeoutError(f"no event came within {timeout} s")
                    if self._leader is None:
                        self._lead(mailbox, left)
                    else:
                        self._follow(mailbox, left)
                return mailbox.events.popleft()
            finally:
                mailbox.waiting = False
                if self._leader is None and self._followers:
                    condition = next(iter(self._followers)).condition
                    assert condition is not None
                    condition.notify()

    def _begin_wait(self, mailbox: Mailbox) -> None:
        if mailbox.waiting:
            raise RuntimeError("two threads or tasks read the events of one request at the same time")
        mailbox.waiting = True

    def _lead(self, mailbox: Mailbox, timeout: Optional[float]) -> None:
        """Polls once for all, and sleeps before if there was nothing."""
        self._leader, self._leader_thread = mailbox, threading.get_ident()
        try:
            self._poll()
            if mailbox.events:
                return
            self._lock.release()
            try:
                ready = self._poller.poll(None if timeout is None else math.ceil(timeout * 1000))
            finally:
                self._lock.acquire()
            if self._closing:
                return
            if any(fd == self._wake_read for fd, _ in ready):
                os.read(self._wake_read, 4096)
            self._poll()
        finally:
            self._leader = None
            if self._closing:
                self._idle.notify_all()

    def _follow(self, mailbox: Mailbox, timeout: Optional[float]) -> None:
        if mailbox.condition is None:
            mailbox.condition = threading.Condition(self._lock)
        self._followers.add(mailbox)
        try:
            mailbox.condition.wait(timeout)
        finally:
            self._followers.discard(mailbox)

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> bool:
        """What a loop does when events wait. False: the engine is closed."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if self._closing:
                return False
            self._poll(loop)
            return True

    async def _take_async(self, mailbox: Mailbox) -> Optional[Event]:
        self._check_process()
        events = mailbox.events
        while not events:
            with self._lock:
                if events:
                    break
                if not mailbox.unfinished:
                    return None
                self._check_open()
                loop = asyncio.get_running_loop()
                self._watch(loop)
                self._begin_wait(mailbox)
                future: asyncio.Future[None] = loop.create_future()
                mailbox.future = future
            try:
                await future
            finally:
                mailbox.future = None
                mailbox.waiting = False
        return events.popleft()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has a loop take events until it or the engine is closed."""
        for watch in self._watches:
            if watch.loop is loop:
                return
        for watch in [watch for watch in self._watches if watch.loop.is_closed()]:
            self._watches.remove(watch)
            watch.end()
        self._watches.append(_Watch(self, loop, self._event_fd))

    def drain(self, timeout: Optional[float] = None) -> int:
        """Takes no further request. Returns how many have not ended, when none is left or after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            wait = _SIGNAL_CHECK_S if until is None else min(max(until - time.monotonic(), 0), _SIGNAL_CHECK_S)
            with _Use(self) as handle:
                left = int(self._library.fd_drain(handle, int(wait * _NS)))
            if left == 0 or (until is not None and time.monotonic() >= until):
                return left

    # ---- Tokens and text
    def tokenize(self, prompt: Union[str, Sequence[PromptPart]], add_special_tokens: bool = True) -> List[int]:
        """Token ids of a text, whose special tokens become their ids, or of parts."""
        given = [PromptPart(prompt, special=True)] if isinstance(prompt, str) else list(prompt)
        parts = _c_parts(given)
        capacity = 16 + sum(part.text_bytes + part.id_count for part in parts)
        count = ctypes.c_size_t()
        with _Use(self) as handle:
            while True:
                ids = (ctypes.c_int32 * capacity)()
                c.check(self._library.fd_tokenize(handle, parts, len(given), add_special_tokens, ids, capacity,
                                                  ctypes.byref(count)))
                if count.value <= capacity:
                    return ids[:count.value]
                capacity = count.value

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of all but special tokens."""
        array, count = id_array("ids", ids)
        text, text_bytes = c.owned_text(), ctypes.c_size_t()
        with _Use(self) as handle:
            c.check(self._library.fd_detokenize(handle, array, count, ctypes.byref(text), ctypes.byref(text_bytes)))
        copy = ctypes.string_at(text, text_bytes.value).decode("utf-8", "replace")
        self._library.fd_string_free(text)
        return copy

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

    def stats_json(self) -> str:
        """Counters and durations since the last reset, as JSON (docs/GLOSSARY.md names the fields)."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_engine_stats_json(handle))

    def reset_stats(self) -> None:
        with _Use(self) as handle:
            self._library.fd_engine_stats_reset(handle)

    def pages_json(self) -> str:
        """KV pages of each home, as JSON. Asks the homes, which takes a second at most."""
        with _Use(self) as handle:
            return c.take_text(self._library.fd_engine_pages(handle))


def _c_parts(parts: Sequence[PromptPart]) -> Any:
    made = (c.fd_prompt_part * len(parts))()
    for to, part in zip(made, parts):
        to.struct_size = ctypes.sizeof(c.fd_prompt_part)
        to.special = bool(part.special)
        if part.ids is not None:
            to.ids, to.id_count = id_array("ids of a part", part.ids)
        else:
            text = utf8("text of a part", part.text)
            to.text, to.text_bytes = text, len(text)
    return made


def _fill_prompt(request: c.fd_request, prompt: Prompt) -> None:
    if isinstance(prompt, dict):
        keys = set(prompt) - {key for key in prompt if prompt[key] is None}
        if keys - {"prompt"} == {"prompt_token_ids"}:
            prompt = prompt["prompt_token_ids"]
        elif keys == {"prompt"}:
            prompt = prompt["prompt"]
        else:
            raise errors.invalid(f"prompt: it has {sorted(keys)}, and may have prompt or prompt_token_ids alone")
    if isinstance(prompt, str):
        text = utf8("prompt", prompt)
        request.prompt, request.prompt_bytes = text, len(text)
    elif isinstance(prompt, (list, tuple)) and prompt and all(isinstance(part, PromptPart) for part in prompt):
        request.parts, request.part_count = _c_parts(prompt), len(prompt)  # type: ignore[arg-type]
    elif isinstance(prompt, (bytes, bytearray)):
        raise TypeError("prompt: it is bytes, and text is str")
    else:
        request.prompt_ids, request.prompt_id_count = id_array("prompt", prompt)


class Request:
    """A request that an engine serves. Its events are read with `for event in request`, `async for event in request` or
    next(), by one thread or task at a time.

    A loop that ends early cancels the request, as does leaving `with request:`, an asyncio task that is cancelled while
    it waits, and dropping the request.
    """

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._engine = engine
        self._stream = stream

    @property
    def id(self) -> int:
        return self._stream.id

    @property
    def finished(self) -> bool:
        """Whether it has ended; events may be left to be read."""
        return self._stream.finished

    def cancel(self) -> None:
        """It ends soon, with finish_reason "cancelled" unless it ended before."""
        self._engine._cancel(self._stream)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None after the last one. Raises TimeoutError after `timeout` seconds."""
        return self._engine._take(self._stream.mailbox, timeout)

    def __iter__(self) -> Iterator[Event]:
        return _Events(self)

    def __aiter__(self) -> AsyncIterator[Event]:
        return _Events(self)

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._engine._abandon(self._stream)


class _Events:
    """Reads a request's events in a loop, which cancels the request if it is left early."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __iter__(self) -> _Events:
        return self

    def __aiter__(self) -> _Events:
        return self

    def __next__(self) -> Event:
        request = self._request
        try:
            event = request._engine._take(request._stream.mailbox)
        except BaseException:
            request.cancel()
            raise
        if event is None:
            raise StopIteration
        return event

    async def __anext__(self) -> Event:
        request = self._request
        try:
            event = await request._engine._take_async(request._stream.mailbox)
        except BaseException:
            request.cancel()
            raise
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """Cancels the request, unless it has ended."""
        self._request.cancel()

    async def aclose(self) -> None:
        self._request.cancel()

    def __del__(self) -> None:
        self._request.cancel()
