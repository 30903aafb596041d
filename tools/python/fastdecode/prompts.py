"""What a request begins with."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Set, Union

from . import _library as c
from ._errors import invalid
from .sampling import id_array, utf8

if TYPE_CHECKING:
    from .chat import RenderedChat


@dataclass
class PromptPart:
    """A piece of a prompt: text, or token ids as they are.

    What users typed is given with special=False, so that nobody can write a special token by its name; what the program
    wrote around it, such as a chat template's text, with special=True. Text with joins=True goes on with that of the
    part before it, and both are tokenised as one text.
    """

    text: str = ""
    special: bool = False
    ids: Optional[Sequence[int]] = None
    joins: bool = False


# Text; token ids; {"prompt": text} or {"prompt_token_ids": ids}, which may have a "cache_salt", too; parts; or a chat.
Prompt = Union[str, Sequence[int], Dict[str, Any], Sequence[PromptPart], "RenderedChat"]


def c_parts(parts: Sequence[PromptPart]) -> Any:
    """An array of fd_prompt_part, which keeps what it points to."""
    made = (c.fd_prompt_part * len(parts))()
    for to, part in zip(made, parts):
        to.struct_size = ctypes.sizeof(c.fd_prompt_part)
        to.special = bool(part.special)
        to.joins = bool(part.joins)
        if part.ids is not None:
            to.ids, to.id_count = id_array("ids of a part", part.ids)
        else:
            text = utf8("text of a part", part.text)
            to.text, to.text_bytes = text, len(text)
    return made


def checked_keys(prompt: Dict[str, Any]) -> Set[str]:
    """The keys of a prompt that have a value."""
    keys = {key for key in prompt if prompt[key] is not None}
    if not keys - {"cache_salt"} or not keys <= {"prompt", "prompt_token_ids", "cache_salt"}:
        raise invalid(f"prompt: it has {sorted(keys)}, and must have prompt or prompt_token_ids, and may have cache_salt "
                      "beside these alone")
    return keys


def fill_prefix_cache(request: c.fd_request, prefix_cache: bool, cache_salt: Optional[str]) -> None:
    """Sets what an fd_request says of KV that is kept, and keeps what it points to."""
    request.no_prefix_cache = not prefix_cache
    if cache_salt is None:
        return
    if not isinstance(cache_salt, str):
        raise TypeError(f"cache_salt: {cache_salt!r} is not a string")
    salt = utf8("cache_salt", cache_salt)
    if not salt:
        raise invalid("cache_salt: it is empty, and would keep nothing apart; leave it out")
    request.cache_salt, request.cache_salt_bytes = salt, len(salt)


def fill_prompt(request: c.fd_request, prompt: Any) -> None:
    """Sets the prompt of an fd_request, which keeps what it points to; any but a chat."""
    if isinstance(prompt, dict):
        prompt = prompt["prompt_token_ids" if "prompt_token_ids" in checked_keys(prompt) else "prompt"]
    if isinstance(prompt, str):
        text = utf8("prompt", prompt)
        request.prompt, request.prompt_bytes = text, len(text)
    elif isinstance(prompt, (list, tuple)) and prompt and all(isinstance(part, PromptPart) for part in prompt):
        request.parts, request.part_count = c_parts(prompt), len(prompt)
    elif isinstance(prompt, (bytes, bytearray)):
        raise TypeError("prompt: it is bytes, and text is str")
    else:
        request.prompt_ids, request.prompt_id_count = id_array("prompt", prompt)
