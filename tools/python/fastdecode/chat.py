"""Chats: messages as the model's template writes them, and answers with their reasoning apart."""

from __future__ import annotations

import ctypes
import datetime
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _library as c
from ._errors import invalid
from .events import Event, RequestTimes
from .prompts import PromptPart
from .sampling import c_text, checked_float, utf8

if TYPE_CHECKING:
    from .engine import Engine

# Objects with role and content, as OpenAI's API has them.
Messages = Sequence[Dict[str, Any]]
# Seconds since 1970, or a time; None: the clock's.
Now = Union[None, int, float, datetime.datetime]


def _json(name: str, value: Any) -> bytes:
    """A value as the library takes it."""
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:  # NaN, what contains itself, what is nested too deep
        raise invalid(f"{name}: {error}") from None


def _seconds_of(now: Now) -> int:
    """The time as the library takes it, -1 being the clock's."""
    if now is None:
        return -1
    given = now.timestamp() if isinstance(now, datetime.datetime) else checked_float("now", now)
    if not 0 <= given < 2**62:
        raise invalid(f"now: {now!r} is no time since 1970")
    return math.floor(given)


def fill_input(given: c.fd_chat_input, now: Now, **values: Any) -> None:
    """Sets what of an fd_chat_input is JSON, and the time; None: there is none."""
    for name, value in values.items():
        if value is not None:
            text = _json(name, value)
            setattr(given, name, text)
            setattr(given, f"{name}_bytes", len(text))
    given.now_s = _seconds_of(now)


class RenderedChat:
    """A chat as the model's template writes it, made by Engine.render_chat: a prompt."""

    def __init__(self, engine: Engine, handle: Any) -> None:
        self._engine = engine
        self._library = c.load()
        self._handle = handle

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle:
            self._library.fd_chat_destroy(handle)

    @property
    def parts(self) -> List[PromptPart]:
        """The prompt. special=True is what the template's author wrote: nothing else can become a special token."""
        count = ctypes.c_size_t()
        first = self._library.fd_chat_parts(self._handle, ctypes.byref(count))
        if not count.value:
            return []
        at, size = ctypes.addressof(first.contents), first.contents.struct_size
        made = []
        for i in range(count.value):
            part = c.fd_prompt_part.from_address(at + i * size)
            # Read as a c_char_p, a text would end at its first 0 byte.
            text = _address_in(part, "text")
            made.append(PromptPart(ctypes.string_at(text, part.text_bytes).decode("utf-8", "replace"),
                                   bool(part.special), joins=bool(part.joins)))
        return made

    @property
    def text(self) -> str:
        """All of the prompt as one text, for people: what of it may be a special token, the parts alone know."""
        return "".join(part.text for part in self.parts)

    def token_ids(self) -> List[int]:
        """The prompt's tokens."""
        return self._engine.tokenize(self.parts, add_special_tokens=False)

    def fill(self, request: c.fd_request) -> None:
        """Sets the prompt of an fd_request. The chat must live until it is submitted."""
        self._library.fd_chat_set_prompt(self._handle, ctypes.byref(request))

    def reader(self) -> ChatReader:
        """What reads one answer to this chat."""
        return ChatReader(self)


def _address_in(struct: Any, name: str) -> int:
    """The address that a field of a struct holds."""
    at = ctypes.addressof(struct) + getattr(type(struct), name).offset
    return ctypes.c_void_p.from_address(at).value or 0


class ChatReader:
    """Takes one answer to a chat apart into reasoning (such as what stands in <think>...</think>) and content."""

    def __init__(self, chat: RenderedChat) -> None:
        self._library = c.load()
        self._handle = self._library.fd_chat_reader_create(chat._handle)
        if not self._handle:
            raise MemoryError("no memory for a reader of answers")
        self._piece = c.fd_chat_piece()
        self._event = c.fd_event()
        self.read("")  # the prompt may have begun the reasoning

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle:
            self._library.fd_chat_reader_destroy(handle)

    def read_event(self, event: Event) -> Tuple[str, str]:
        """What the next event adds to the reasoning and to the content.

        What may be the beginning of a mark is held back until the last event.
        """
        given, view = utf8("text", event.text), self._event
        view.kind = c.EVENT_FINISHED if event.finished else c.EVENT_TOKEN
        view.text = ctypes.cast(ctypes.c_char_p(given), ctypes.POINTER(ctypes.c_char))
        view.text_bytes = len(given)
        view.special = (c.fd_text_range * len(event.special))(*event.special)
        view.special_count = len(event.special)
        view.hides_special = event.hides_special
        return self._taken(self._library.fd_chat_read_event(self._handle, ctypes.byref(view),
                                                            ctypes.byref(self._piece)))

    def read(self, text: str, last: bool = False) -> Tuple[str, str]:
        """The same for a text of which nobody knows what special tokens wrote: what spells a mark of the reasoning is
        one, and all else stays. `last`: nothing follows, and what was held back comes.
        """
        given = utf8("text", text)
        return self._taken(self._library.fd_chat_read(self._handle, given, len(given), last,
                                                      ctypes.byref(self._piece)))

    def _taken(self, error: int) -> Tuple[str, str]:
        if error != 0:
            raise MemoryError("no memory for an answer")
        piece = self._piece
        return (piece.reasoning[:piece.reasoning_bytes].decode("utf-8", "replace"),
                piece.content[:piece.content_bytes].decode("utf-8", "replace"))

    @property
    def in_reasoning(self) -> bool:
        """Whether the model is reasoning where what has been read ends."""
        return bool(self._piece.in_reasoning)


@dataclass
class ChatEvent(Event):
    """An event of a chat's answer. `text` is all that it adds, marks of the reasoning included."""

    __slots__ = ("reasoning", "content")

    reasoning: str
    content: str  # comes after the reasoning where there are both


@dataclass
class ChatAnswer:
    """What became of a chat. `finish_reason`: as of an Event; "error": what happened is in `error`."""

    content: str = ""
    reasoning: str = ""
    token_ids: List[int] = field(default_factory=list)  # of both, without the stop token
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    error: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    times: Optional[RequestTimes] = None
    cached_tokens: int = 0  # of prompt_tokens, those whose KV other requests had computed

    @property
    def message(self) -> Dict[str, Any]:
        """The message that goes on with the chat."""
        made = {"role": "assistant", "content": self.content}
        return dict(made, reasoning_content=self.reasoning) if self.reasoning else made

    def add(self, event: ChatEvent) -> None:
        self.content += event.content
        self.reasoning += event.reasoning
        if event.kind == "token":
            self.token_ids += event.tokens
        if event.finished:
            self.finish_reason, self.stop_reason, self.error = event.finish_reason, event.stop_reason, event.error
            self.prompt_tokens, self.generated_tokens = event.prompt_tokens, event.generated_tokens
            self.times, self.cached_tokens = event.times, event.cached_tokens


def render_template(source: str, context: Optional[Dict[str, Any]] = None, now: Now = None,
                    name: str = "template") -> str:
    """What any template makes of variables, for people who write templates.

    Errors name line and column, and call it `name`. Raises ResourceExhausted if it needs more steps, memory or time than a
    template may.
    """
    library = c.load()
    text, given = utf8("source", source), _json("context", context or {})
    made, made_bytes = c.owned_text(), ctypes.c_size_t()
    c.check(library.fd_template_render(c_text("name", name), text, len(text), given, len(given), _seconds_of(now),
                                       ctypes.byref(made), ctypes.byref(made_bytes)))
    copy = ctypes.string_at(made, made_bytes.value).decode("utf-8", "replace")
    library.fd_string_free(made)
    return copy
