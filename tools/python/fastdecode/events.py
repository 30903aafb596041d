"""What a request tells its reader."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _library as c

# By fd_event_kind and fd_finish. Later versions of the library may have more of both.
_KINDS = {c.EVENT_TOKEN: "token", c.EVENT_FINISHED: "finished", c.EVENT_PROMPT: "prompt",
          c.EVENT_PAUSED: "paused"}
FINISH_REASONS = {
    c.FINISH_STOP: "stop",
    c.FINISH_LENGTH: "length",
    c.FINISH_CANCELLED: "cancelled",
    c.FINISH_ERROR: "error",
    c.FINISH_DEADLINE: "deadline",
}


@dataclass
class StepTimes:
    """Where the time of a request's steps went, in ns. The places add up to total_ns."""

    steps: int
    total_ns: int
    s_ns: int
    wait_ns: int
    home_ns: int
    wire_ns: int
    boundary_ns: int
    sampling_ns: int


@dataclass
class RequestTimes:
    """Where the time of a request went, in ns."""

    preemptions: int
    queue_ns: int
    prefill: StepTimes
    decode: StepTimes
    recovery_ns: int  # of all that: from each loss of its home until it was again where it had been
    recoveries: int  # its home was lost, and it was computed again elsewhere


@dataclass
class Event:
    """Something that came of a request. The last one of each of its choices, and no other, has a finish_reason."""

    __slots__ = ("request_id", "kind", "choice", "token_index", "tokens", "text", "logprobs", "top_logprobs",
                 "finish_reason", "stop_reason", "error", "prompt_tokens", "generated_tokens", "submit_time_ns",
                 "time_ns", "times", "special", "hides_special", "home", "cached_tokens")

    request_id: int
    # "token": tokens of an answer. "prompt": the logprobs of the prompt's tokens, once and before the first token of any
    # answer, for requests that ask for them. "paused": the answer's home was lost, and it is computed again elsewhere,
    # for requests that ask to be told; the next event of the choice says that it goes on. "finished": the last event of
    # the choice, which may have some last text, too.
    kind: str
    choice: int  # which of the request's n answers, from 0
    token_index: int  # of tokens[0]
    tokens: List[int]  # one, or several where the reader has fallen behind
    text: str  # that became certain; may be empty, as within a character of several tokens
    logprobs: Optional[List[Optional[float]]]  # of each of the tokens, but None for a prompt's first one
    top_logprobs: Optional[List[List[Tuple[int, float]]]]  # for each of the tokens: ids and logprobs, most likely first
    finish_reason: Optional[str]  # "stop", "length", "cancelled", "error", "deadline"; None: it goes on
    stop_reason: Union[None, int, str]  # after "stop": the stop string, or the id of the stop token
    error: str  # after "error": what happened
    prompt_tokens: int  # in the last event of a choice
    generated_tokens: int  # the same
    submit_time_ns: int  # the clock of time.monotonic_ns()
    time_ns: int
    times: Optional[RequestTimes]  # in the last event, of a choice that was in a step
    special: List[Tuple[int, int]]  # what special tokens wrote: from which byte of the text's UTF-8 to before which
    hides_special: bool  # they are in the text for a chat's reader alone
    home: Optional[int]  # after "paused": which home was lost, an index into Engine.homes()
    cached_tokens: int  # in the last event of a choice: of prompt_tokens, those whose KV other requests had computed

    @property
    def finished(self) -> bool:
        """Whether it is the last event of its choice, and so of a request with one."""
        return self.finish_reason is not None


def _step_times(times: c.fd_step_times) -> StepTimes:
    return StepTimes(*(getattr(times, field[0]) for field in c.fd_step_times._fields_))


def _request_times(times: c.fd_request_times) -> RequestTimes:
    return RequestTimes(times.preemptions, times.queue_ns, _step_times(times.prefill), _step_times(times.decode),
                        times.recovery_ns, times.recoveries)


def _top_logprobs(event: Any, count: int) -> List[List[Tuple[int, float]]]:
    width = event.top_logprob_count
    pairs: List[Any] = list(struct.iter_unpack("if", ctypes.string_at(event.top_logprobs, 8 * count * width)))
    # Token -1 where there is none: for a prompt's first token, and where the vocabulary has no more.
    return [[pair for pair in pairs[at:at + width] if pair[0] >= 0] for at in range(0, count * width, width)]


def _stop_reason(event: Any, stops: Sequence[str]) -> Union[None, int, str]:
    if event.finish != c.FINISH_STOP:
        return None
    if event.stop_index >= 0:
        return str(stops[event.stop_index])
    return int(event.stop_token) if event.stop_token >= 0 else None


def copy_event(event: Any, stops: Sequence[str]) -> Event:
    """Copies an fd_event, whose pointers live until the next fd_poll. `stops`: the request's stop strings."""
    text_bytes = event.text_bytes
    text = event.text[:text_bytes].decode("utf-8", "replace") if text_bytes else ""
    kind = _KINDS.get(event.kind, "unknown")
    special = [(event.special[i].begin, event.special[i].end) for i in range(event.special_count)]
    hides_special = bool(event.hides_special)
    if kind == "finished":
        return Event(event.id, "finished", event.choice, event.token_index, [], text, None, None,
                     FINISH_REASONS.get(event.finish, "unknown"), _stop_reason(event, stops),
                     event.error.decode("utf-8", "replace") if event.error else "", event.prompt_tokens,
                     event.generated_tokens, event.submit_ns, event.time_ns,
                     _request_times(event.times.contents) if event.times else None, special, hides_special, None,
                     event.cached_tokens)
    count = event.token_count
    logprobs: Optional[List[Optional[float]]] = event.logprobs[:count] if event.logprobs else None
    tops = _top_logprobs(event, count) if event.top_logprob_count and event.top_logprobs else None
    if kind == "prompt" and logprobs:
        logprobs[0] = None  # NaN
    return Event(event.id, kind, event.choice, event.token_index, event.tokens[:count], text, logprobs,
                 tops, None, None, "", 0, 0, event.submit_ns, event.time_ns, None, special, hides_special,
                 event.home if kind == "paused" else None, 0)
