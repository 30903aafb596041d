"""FastDecode from Python: serving large language models, without a compiler.

    from fastdecode import Engine, LLM, SamplingParams

    with Engine("/models/llama") as engine:
        for event in engine.submit("Once upon a time", SamplingParams(max_tokens=100)):
            print(event.text, end="", flush=True)

`Engine` streams events, to threads and to asyncio, also of chats; `LLM` answers lists of prompts as vLLM's class of
this name does. Both stand on the C interface of the shared library libfastdecode, which _library.py finds.
"""

from ._errors import (AlreadyExists, EngineClosed, FailedPrecondition, FastDecodeError, InternalError, InvalidArgument,
                      LibraryError, NotFound, PermissionDenied, QueueFull, ResourceExhausted, Unavailable)
from .chat import ChatAnswer, ChatEvent, ChatReader, RenderedChat, render_template
from .engine import Engine, HomeStats, Stats
from .events import Event, RequestTimes, StepTimes
from .llm import LLM, CompletionOutput, Logprob, RequestOutput
from .models import inspect_model
from .prompts import PromptPart
from .request import ChatRequest, Request
from .sampling import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists", "ChatAnswer", "ChatEvent", "ChatReader", "ChatRequest", "CompletionOutput", "Engine",
    "EngineClosed", "Event", "FailedPrecondition", "FastDecodeError", "HomeStats", "InternalError", "InvalidArgument",
    "LLM", "LibraryError", "Logprob", "NotFound", "PermissionDenied", "PromptPart", "QueueFull", "RenderedChat",
    "Request", "RequestOutput", "RequestTimes", "ResourceExhausted", "SamplingParams", "Stats", "StepTimes",
    "Unavailable", "inspect_model", "render_template",
]
