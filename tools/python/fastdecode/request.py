"""A request, and how its events are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, Iterator, List, Optional, cast

from ._delivery import Stream
from .chat import ChatEvent, ChatReader
from .events import Event

if TYPE_CHECKING:
    from .engine import Engine


class Request:
    """A request that an engine serves. Its events are read with `for event in request`, `async for event in request` or
    next(), by one thread or task at a time: those of all its choices, which take turns.

    A loop that is left early cancels the request, by break, by an exception or with its asyncio task; so do leaving
    `with request:` and dropping the request.
    """

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._engine = engine
        self._stream = stream

    @property
    def id(self) -> int:
        return self._stream.id

    @property
    def finished(self) -> bool:
        """Whether it has ended, with all its choices; events may be left to be read."""
        return self._stream.finished

    def cancel(self) -> None:
        """It ends soon, with finish_reason "cancelled" unless it ended before."""
        self._engine._cancel(self._stream)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None after the last one. Raises TimeoutError after `timeout` seconds."""
        event = self._engine._delivery.take(self._stream.mailbox, timeout)
        return None if event is None else self._made_of(event)

    def _made_of(self, event: Event) -> Event:
        """What its reader is given of an event."""
        return event

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


class ChatRequest(Request):
    """A chat's answers that an engine writes, read as a Request's."""

    def __init__(self, engine: Engine, stream: Stream, readers: List[ChatReader]) -> None:
        super().__init__(engine, stream)
        self._readers = readers  # by choice

    def _made_of(self, event: Event) -> ChatEvent:
        values: List[Any] = [getattr(event, name) for name in Event.__slots__]
        values += self._readers[event.choice].read_event(event)
        return ChatEvent(*values)

    def next(self, timeout: Optional[float] = None) -> Optional[ChatEvent]:
        """The next event; None after the last one. Raises TimeoutError after `timeout` seconds."""
        return cast(Optional[ChatEvent], super().next(timeout))

    def __iter__(self) -> Iterator[ChatEvent]:
        return cast(Iterator[ChatEvent], super().__iter__())

    def __aiter__(self) -> AsyncIterator[ChatEvent]:
        return cast(AsyncIterator[ChatEvent], super().__aiter__())


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
        try:
            event = self._request.next()
        except BaseException:  # such as Ctrl-C; its traceback keeps this iterator
            self._request.cancel()
            raise
        if event is None:
            raise StopIteration
        return event

    async def __anext__(self) -> Event:
        request = self._request
        try:
            event = await request._engine._delivery.take_async(request._stream.mailbox)
        except BaseException:  # such as the task's cancellation; its traceback keeps this iterator
            request.cancel()
            raise
        if event is None:
            raise StopAsyncIteration
        return request._made_of(event)

    def close(self) -> None:
        """Cancels the request, unless it has ended."""
        self._request.cancel()

    async def aclose(self) -> None:
        self._request.cancel()

    def __del__(self) -> None:
        self._request.cancel()
