"""How events come to their readers.

fd_poll takes the events of every request of an engine, one thread at a time, so whoever waits polls for all: it copies
what comes and puts each event into the mailbox of its request. Of the threads that wait, one leads: it sleeps on the
engine's event descriptor, and the others on conditions of their own; when it has what it waited for it leaves the lead
to one of them. An asyncio loop in which somebody waits watches the same descriptor. A pipe wakes the leader when
another thread or a loop has put something into its mailbox.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Set

from . import _errors as errors
from . import _library as c
from .events import Event, copy_event

# Events that one fd_poll takes at most.
_BATCH = 256


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

    __slots__ = ("key", "id", "mailbox", "stops", "left", "finished")

    def __init__(self, key: int, mailbox: Mailbox, stops: List[str], choices: int) -> None:
        self.key = key  # comes back with each event; the id is known too late, when another thread may have polled
        self.id = 0
        self.mailbox = mailbox
        self.stops = stops
        self.left = choices  # those whose last event is not in the mailbox, and was not
        self.finished = False  # no choice is left


class _Watch:
    """An asyncio loop that watches for events, by a copy of the engine's descriptor, which may outlive the engine's."""

    def __init__(self, delivery: Delivery, loop: asyncio.AbstractEventLoop, event_fd: int) -> None:
        self.loop = loop
        self._delivery = weakref.ref(delivery)
        self._fd = os.dup(event_fd)
        loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        delivery = self._delivery()
        if delivery is None or not delivery.deliver(self.loop):
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


def _wake_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Delivery:
    """The events of an engine, from fd_poll to the mailboxes of its requests. Any thread may call what has no _.

    `lock` guards all of it. It is an RLock, as a request that the garbage collector finds is cancelled in whatever
    thread that runs, which may hold it.
    """

    def __init__(self, handle: Any) -> None:
        self.lock = threading.RLock()
        self.closing = False
        self.pid = os.getpid()
        self.streams: Dict[int, Stream] = {}
        self._library = c.load()
        self._handle = handle
        self._next_key = 1
        self._led = threading.Condition(self.lock)  # nobody leads any more
        self._leader: Optional[Mailbox] = None
        self._leader_thread = 0
        self._followers: Set[Mailbox] = set()
        self._watches: List[_Watch] = []
        self._batch = (c.fd_event * _BATCH)()
        self._batch[0].struct_size = ctypes.sizeof(c.fd_event)
        self._slots = list(self._batch)  # an index into the array would make an object each time
        self._taken = self._copied = 0  # of the batch
        self._event_fd = self._library.fd_engine_event_fd(handle)
        if self._event_fd < 0:
            raise errors.error_of(errors.RESOURCE_EXHAUSTED,
                                  "the process has no file descriptor left for the events of an engine")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = select.poll()
        self._poller.register(self._event_fd, select.POLLIN)
        self._poller.register(self._wake_read, select.POLLIN)

    def check_open(self) -> None:
        """Raises what a call on a closed engine, or in a forked child, does."""
        if self.pid != os.getpid():
            raise errors.EngineClosed(errors.UNAVAILABLE, f"this engine belongs to process {self.pid}, and this is "
                                      f"{os.getpid()}: an engine does not survive fork(), so make one in each process")
        if self.closing:
            raise errors.EngineClosed(errors.UNAVAILABLE, "the engine is closed")

    def add(self, mailbox: Mailbox, stops: List[str], choices: int) -> Stream:
        """A request that is about to be submitted, whose events go to a mailbox."""
        with self.lock:
            stream = Stream(self._next_key, mailbox, stops, choices)
            self._next_key += 1
            self.streams[stream.key] = stream
            mailbox.unfinished += 1
            return stream

    def drop(self, stream: Stream) -> None:
        """It was refused, or nobody will read its events. Also from finalisers."""
        if self.pid != os.getpid():
            return
        with self.lock:
            if self.streams.pop(stream.key, None) is not None:
                stream.mailbox.unfinished -= 1

    def end(self) -> None:
        """Wakes all who wait, who find the engine closing, and lets go of its handle; with the lock held."""
        self.closing = True
        for mailbox in {stream.mailbox for stream in self.streams.values()}:
            if mailbox.waiting:
                self._wake(mailbox, None)
        for mailbox in self._followers:
            if mailbox.condition is not None:
                mailbox.condition.notify()
        if self._leader is not None:
            self._wake_leader()
        # Whoever leads in this very thread has been interrupted, by a signal handler that ends this.
        while self._leader is not None and self._leader_thread != threading.get_ident():
            self._led.wait()
        self._handle = None
        self.streams.clear()
        for watch in self._watches:
            watch.end()
        self._watches.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _poll(self, loop: Optional[asyncio.AbstractEventLoop] = None) -> None:
        """Takes what events there are and wakes who waits for them; with the lock held. `loop`: the one that calls."""
        if self._copied == self._taken:
            count = self._library.fd_poll(self._handle, self._batch, _BATCH, 0)
            if count < 0:
                raise errors.error_of(errors.RESOURCE_EXHAUSTED, "no memory for the events of requests")
            self._copied, self._taken = 0, count
        slots, streams = self._slots, self.streams
        while self._copied < self._taken:
            slot = slots[self._copied]
            stream = streams.get(slot.user)
            if stream is None:  # nobody reads it
                self._copied += 1
                continue
            event = copy_event(slot, stream.stops)
            mailbox = stream.mailbox
            append = mailbox.events.append
            ends = event.finish_reason is not None
            if ends and stream.left == 1:
                stream.finished = True
                self.drop(stream)
            # An exception that a signal brings (Ctrl-C) comes after the call: no event is lost, and none comes twice.
            self._copied += 1
            stream.left -= ends
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

    def take(self, mailbox: Mailbox, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event of a mailbox; None: all of its requests have ended. TimeoutError after so many seconds."""
        if self.pid != os.getpid():
            self.check_open()
        try:
            return mailbox.events.popleft()
        except IndexError:
            pass
        until = None if timeout is None else time.monotonic() + timeout
        looked = False  # also with timeout 0 whoever asks looks for events
        with self.lock:
            self._begin_wait(mailbox)
            try:
                while not mailbox.events:
                    if not mailbox.unfinished:
                        return None
                    self.check_open()
                    left = None if until is None else max(until - time.monotonic(), 0)
                    if left == 0 and looked:
                        raise TimeoutError(f"no event came within {timeout} s")
                    looked = True
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
            self.lock.release()
            try:
                ready = self._poller.poll(None if timeout is None else math.ceil(timeout * 1000))
            finally:
                self.lock.acquire()
            if self.closing:
                return
            if any(fd == self._wake_read for fd, _ in ready):
                os.read(self._wake_read, 4096)
            self._poll()
        finally:
            self._leader = None
            if self.closing:
                self._led.notify_all()

    def _follow(self, mailbox: Mailbox, timeout: Optional[float]) -> None:
        if mailbox.condition is None:
            mailbox.condition = threading.Condition(self.lock)
        self._followers.add(mailbox)
        try:
            mailbox.condition.wait(timeout)
        finally:
            self._followers.discard(mailbox)

    def deliver(self, loop: asyncio.AbstractEventLoop) -> bool:
        """What a loop does when events wait. False: the engine is closed."""
        if self.pid != os.getpid():
            return False
        with self.lock:
            if self.closing:
                return False
            self._poll(loop)
            return True

    async def take_async(self, mailbox: Mailbox) -> Optional[Event]:
        if self.pid != os.getpid():
            self.check_open()
        events = mailbox.events
        while not events:
            with self.lock:
                if events:
                    break
                if not mailbox.unfinished:
                    return None
                self.check_open()
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
