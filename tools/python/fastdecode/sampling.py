"""How a request's tokens are chosen, and how many."""

from __future__ import annotations

import ctypes
import operator
import random
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _library as c
from ._errors import invalid

if TYPE_CHECKING:
    from .engine import Engine

_random = random.SystemRandom()

# What vLLM's class has and this engine has not, and the only values that say nothing of it.
_UNSUPPORTED: Dict[str, Tuple[Any, ...]] = {
    "detokenize": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (None,),
    "logits_processors": (None,),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "guided_decoding": (None,),
    "structured_outputs": (None,),
    "extra_args": (None,),
}

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


def checked_int(name: str, value: Any, least: int, most: int) -> int:
    """An integer that its C field can hold: ctypes cuts others off without a word."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r} is not an integer") from None
    if not least <= number <= most:
        raise invalid(f"{name}: {number} is not within {least} to {most}")
    return number


def checked_float(name: str, value: Any) -> float:
    if isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is not a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not a number") from None


def id_array(name: str, ids: Any) -> Tuple[Any, int]:
    """Token ids as C takes them: an array of ctypes, and how many."""
    try:
        copied = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)
    except OverflowError:
        wrong = next(value for value in ids if not -2**31 <= value <= _INT32_MAX)
        raise invalid(f"{name}: {wrong} is not a token id") from None
    except TypeError:
        raise TypeError(f"{name}: {ids!r} is not a sequence of token ids") from None
    return (ctypes.c_int32 * len(copied)).from_buffer_copy(copied) if copied else (ctypes.c_int32 * 1)(), len(copied)


def utf8(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(f"{name}: character {error.start} is half of a surrogate pair, which is no text") from None


def c_text(name: str, text: str) -> bytes:
    """For what ends at its first 0 byte in C."""
    encoded = utf8(name, text)
    if b"\0" in encoded:
        raise invalid(f"{name}: there is a 0 byte in {text!r}")
    return encoded


@dataclass
class SamplingParams:
    """The parameters of a request, named as vLLM names them. What this engine does not have is refused by name.

    One may be used for many requests. It is checked when it is made, and again with each request.
    """

    n: int = 1  # answers to one prompt, which is computed once; the k-th one has seed + k
    presence_penalty: float = 0.0  # 0: off
    frequency_penalty: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0 and -1: off
    min_p: float = 0.0  # 0: off
    seed: Optional[int] = None  # a request's tokens depend on it and its logits alone; None: another for each request
    stop: Union[None, str, Sequence[str]] = None  # strings that end the text before themselves
    stop_token_ids: Optional[Sequence[int]] = None  # beside the model's own
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16  # None: as many as the context holds; 0: with prompt_logprobs, the prompt alone
    min_tokens: int = 0  # no stop before so many
    logprobs: Optional[int] = None  # 0: of each chosen token; k: also of the k most likely, at most 20
    prompt_logprobs: Optional[int] = None  # the same of the prompt's tokens
    include_stop_str_in_output: bool = False
    logit_bias: Optional[Dict[int, float]] = None
    skip_special_tokens: bool = True  # False: they are part of the answer's text
    # The rest is vLLM's, and refused unless it says nothing.
    best_of: Optional[int] = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Optional[int] = None
    logits_processors: Any = None
    bad_words: Optional[List[str]] = None
    allowed_token_ids: Optional[List[int]] = None
    guided_decoding: Any = None
    structured_outputs: Any = None
    extra_args: Optional[Dict[str, Any]] = None

    def __post_init__(self) -> None:
        request = c.fd_request()
        c.load().fd_request_init(ctypes.byref(request), ctypes.sizeof(request))
        self.fill(request)
        c.check(c.load().fd_request_check(ctypes.byref(request)))

    @staticmethod
    def default_for(engine: Engine) -> SamplingParams:
        """What the model's makers recommend (its generation_config.json)."""
        return engine.default_sampling_params()

    def stop_strings(self) -> List[str]:
        if self.stop is None:
            return []
        if isinstance(self.stop, str):
            return [self.stop]
        stops = list(self.stop)
        for text in stops:
            if not isinstance(text, str):
                raise TypeError(f"stop: {text!r} is not a string")
        return stops

    def fill(self, request: c.fd_request) -> None:
        """Sets the fields of an fd_request that fd_request_init has set, which keeps what they point to."""
        for name, allowed in _UNSUPPORTED.items():
            value = getattr(self, name)
            if not any(value is one or value == one for one in allowed):
                raise invalid(f"{name}: {value!r} is not supported; it may only be {allowed[0]!r}")
        if self.best_of is not None and self.best_of != self.n:
            raise invalid(f"best_of: {self.best_of!r} is not supported; it may only be n, since answers are not ranked")
        request.n = checked_int("n", self.n, 1, _UINT32_MAX)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            setattr(request, name, checked_float(name, getattr(self, name)))
        request.top_k = 0 if self.top_k == -1 else checked_int("top_k", self.top_k, -_INT32_MAX, _INT32_MAX)
        seed = _random.getrandbits(64) if self.seed is None else self.seed
        request.seed = checked_int("seed", seed, 0, _UINT64_MAX)
        most = _UINT32_MAX if self.max_tokens is None else self.max_tokens
        request.max_tokens = checked_int("max_tokens", most, 0, _UINT32_MAX)
        request.min_tokens = checked_int("min_tokens", self.min_tokens, 0, _UINT32_MAX)
        request.ignore_eos = bool(self.ignore_eos)
        request.include_stop = bool(self.include_stop_str_in_output)
        request.show_special = not self.skip_special_tokens
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            setattr(request, name, -1 if value is None else checked_int(name, value, 0, _INT32_MAX))
        if self.stop_token_ids:
            request.stop_token_ids, request.stop_token_id_count = id_array("stop_token_ids", self.stop_token_ids)
        stops = self.stop_strings()
        if stops:
            request.stop = (ctypes.c_char_p * len(stops))(*(c_text("stop", text) for text in stops))
            request.stop_count = len(stops)
        if self.logit_bias:
            biases = (c.fd_logit_bias * len(self.logit_bias))()
            for bias, (token, value) in zip(biases, self.logit_bias.items()):
                bias.token = checked_int("logit_bias", token, 0, _INT32_MAX)
                bias.bias = checked_float("logit_bias", value)
            request.logit_bias = biases
            request.logit_bias_count = len(biases)
