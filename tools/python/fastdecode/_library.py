"""The C interface: its structs and functions as ctypes sees them, and where the shared library is found.

fastdecode.h and fastdecode_bench.h are the contract; names here are theirs. tests/python compares every struct, field
and function with what a C compiler makes of the headers.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int16, c_int32,
                    c_int64, c_size_t, c_uint, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ._errors import LibraryError, error_of

ABI_VERSION = 3
SONAME = f"libfastdecode.so.{ABI_VERSION}"
LIBRARY_VARIABLE = "FASTDECODE_LIBRARY"

# What functions that return a number may return instead.
TIMEOUT, UNKNOWN_REQUEST, NO_MEMORY, BAD_STRUCT_SIZE = 0, -1, -2, -3

EVENT_TOKEN, EVENT_FINISHED, EVENT_PROMPT, EVENT_PAUSED = 1, 2, 3, 4
FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_DEADLINE = 1, 2, 3, 4, 5


# ---- Handles, which are pointers to what only the library knows.
class fd_status(Structure):
    pass


class fd_options(Structure):
    pass


class fd_engine(Structure):
    pass


class fd_chat(Structure):
    pass


class fd_chat_reader(Structure):
    pass


class fd_worker(Structure):
    pass


class fd_record(Structure):
    pass


# ---- Structs. A C enum is an unsigned int. A text that may hold 0 bytes is a POINTER(c_char): of a c_char_p ctypes
# takes what comes before the first one.
class SizedStructure(Structure):
    """A struct whose first field says how much of it its caller knows."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class fd_option_info(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32), ("name", c_char_p), ("value_name", c_char_p), ("default_value", c_char_p),
        ("help", c_char_p),
    ]


class fd_stats(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("homes", c_uint32),
        ("homes_up", c_uint32),
        ("draining", c_uint32),
        ("requests_waiting", c_uint64),
        ("requests_running", c_uint64),
        ("requests_undelivered", c_uint64),
        ("requests_submitted", c_uint64),
        ("requests_refused", c_uint64),
        ("finished_stop", c_uint64),
        ("finished_length", c_uint64),
        ("finished_cancelled", c_uint64),
        ("finished_error", c_uint64),
        ("finished_deadline", c_uint64),
        ("prompt_tokens", c_uint64),
        ("generated_tokens", c_uint64),
        ("preemptions", c_uint64),
        ("steps", c_uint64),
        ("rows", c_uint64),
        ("hops", c_uint64),
        ("s_busy_ns", c_uint64),
        ("kv_pages", c_uint64),
        ("kv_pages_used", c_uint64),
        ("now_ns", c_uint64),
        ("created_ns", c_uint64),
        ("last_step_ns", c_uint64),
        ("recoveries", c_uint64),
        ("recovered", c_uint64),
        ("choices_waiting", c_uint64),
        ("choices_running", c_uint64),
        ("prefix_tokens", c_uint64),
        ("cached_tokens", c_uint64),
        ("kv_pages_cached", c_uint64),
    ]


class fd_home_stats(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("up", c_uint32),
        ("name", c_char_p),
        ("hops", c_uint64),
        ("work_ns", c_uint64),
        ("last_reply_ns", c_uint64),
        ("losses", c_uint64),
        ("kv_pages", c_uint64),
        ("kv_pages_used", c_uint64),
        ("cached_tokens", c_uint64),
        ("kv_pages_cached", c_uint64),
    ]


class fd_prompt_part(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("special", c_int),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("ids", POINTER(c_int32)),
        ("id_count", c_size_t),
        ("joins", c_int),
        ("reserved", c_uint32),
    ]


class fd_logit_bias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class fd_request(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("add_special_tokens", c_int),
        ("prompt", c_char_p),
        ("prompt_bytes", c_size_t),
        ("prompt_ids", POINTER(c_int32)),
        ("prompt_id_count", c_size_t),
        ("parts", POINTER(fd_prompt_part)),
        ("part_count", c_size_t),
        ("user", c_void_p),
        ("deadline_ns", c_uint64),
        ("max_tokens", c_uint32),
        ("min_tokens", c_uint32),
        ("ignore_eos", c_int),
        ("include_stop", c_int),
        ("stop_token_ids", POINTER(c_int32)),
        ("stop_token_id_count", c_size_t),
        ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t),
        ("seed", c_uint64),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("logprobs", c_int32),
        ("prompt_logprobs", c_int32),
        ("reserved", c_uint32),
        ("logit_bias", POINTER(fd_logit_bias)),
        ("logit_bias_count", c_size_t),
        ("show_special", c_int),
        ("reserved2", c_uint32),
        ("pause_events", c_int),
        ("reserved3", c_uint32),
        ("n", c_uint32),
        ("no_prefix_cache", c_int),
        ("cache_salt", c_char_p),
        ("cache_salt_bytes", c_size_t),
    ]


class fd_chat_input(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("add_generation_prompt", c_int),
        ("continue_final_message", c_int),
        ("reserved", c_uint32),
        ("messages", c_char_p),
        ("messages_bytes", c_size_t),
        ("tools", c_char_p),
        ("tools_bytes", c_size_t),
        ("documents", c_char_p),
        ("documents_bytes", c_size_t),
        ("variables", c_char_p),
        ("variables_bytes", c_size_t),
        ("now_s", c_int64),
    ]


class fd_chat_piece(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("in_reasoning", c_int),
        ("reasoning", POINTER(c_char)),
        ("reasoning_bytes", c_size_t),
        ("content", POINTER(c_char)),
        ("content_bytes", c_size_t),
    ]


class fd_token_logprob(Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class fd_step_times(Structure):
    _fields_ = [
        ("steps", c_uint64),
        ("total_ns", c_uint64),
        ("s_ns", c_uint64),
        ("wait_ns", c_uint64),
        ("home_ns", c_uint64),
        ("wire_ns", c_uint64),
        ("boundary_ns", c_uint64),
        ("sampling_ns", c_uint64),
    ]


class fd_request_times(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("preemptions", c_uint32),
        ("queue_ns", c_uint64),
        ("prefill", fd_step_times),
        ("decode", fd_step_times),
        ("recovery_ns", c_uint64),
        ("recoveries", c_uint32),
        ("reserved", c_uint32),
    ]


class fd_text_range(Structure):
    _fields_ = [("begin", c_size_t), ("end", c_size_t)]


class fd_event(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("id", c_uint64),
        ("user", c_void_p),
        ("choice", c_uint32),
        ("token_index", c_uint32),
        ("tokens", POINTER(c_int32)),
        ("token_count", c_uint32),
        ("top_logprob_count", c_uint32),
        ("logprobs", POINTER(c_float)),
        ("top_logprobs", POINTER(fd_token_logprob)),
        ("text", POINTER(c_char)),
        ("text_bytes", c_size_t),
        ("finish", c_int32),
        ("stop_index", c_int32),
        ("stop_token", c_int32),
        ("prompt_tokens", c_uint32),
        ("generated_tokens", c_uint32),
        ("reserved", c_uint32),
        ("error", c_char_p),
        ("submit_ns", c_uint64),
        ("time_ns", c_uint64),
        ("times", POINTER(fd_request_times)),
        ("special", POINTER(fd_text_range)),
        ("special_count", c_uint32),
        ("hides_special", c_int),
        ("home", c_int32),
        ("reserved2", c_uint32),
        ("cached_tokens", c_uint32),
        ("reserved3", c_uint32),
    ]


class fd_record_event(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("step", c_uint32),
        ("start_ns", c_uint64),
        ("end_ns", c_uint64),
        ("id", c_uint64),
        ("bytes", c_uint64),
        ("rows", c_uint32),
        ("count", c_uint32),
        ("layer", c_uint16),
        ("part", c_uint16),
        ("home", c_int16),
        ("kind", c_uint8),
        ("micro_batch", c_uint8),
        ("polled_ns", c_uint64),
        ("home_end_ns", c_uint64),
        ("idle_ns", c_uint32),
        ("prepare_ns", c_uint32),
        ("append_ns", c_uint32),
        ("attend_ns", c_uint32),
        ("merge_ns", c_uint32),
        ("wait_ns", c_uint32),
        ("post_ns", c_uint32),
        ("reserved", c_uint32),
    ]


class fd_bench_request(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("fill_tokens", c_uint32),
        ("prompt_logits", POINTER(c_float)),
        ("prompt_logits_floats", c_size_t),
    ]


synth_progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class fd_synth(SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("layers", c_int),
        ("shape", c_char_p),
        ("seed", c_uint64),
        ("dtype", c_char_p),
        ("out_dir", c_char_p),
        ("k_outliers", c_int),
        ("k_outlier_factor", c_double),
        ("progress", synth_progress),
        ("user", c_void_p),
    ]


fd_log_sink = CFUNCTYPE(None, c_void_p, c_int, c_char_p)

# What of the library's own must be freed keeps its address: ctypes makes bytes of a c_char_p, and the address is lost.
owned_text = POINTER(c_char)

# Each function's result and arguments.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "fd_abi_version": (c_uint32, []),
    "fd_version": (c_char_p, []),
    "fd_status_code": (c_uint, [POINTER(fd_status)]),
    "fd_status_message": (c_char_p, [POINTER(fd_status)]),
    "fd_status_destroy": (None, [POINTER(fd_status)]),
    "fd_option_at": (c_int, [c_size_t, POINTER(fd_option_info)]),
    "fd_options_create": (POINTER(fd_options), []),
    "fd_options_destroy": (None, [POINTER(fd_options)]),
    "fd_options_set": (POINTER(fd_status), [POINTER(fd_options), c_char_p, c_char_p]),
    "fd_options_set_log": (None, [POINTER(fd_options), fd_log_sink, c_void_p, c_int]),
    "fd_engine_create": (POINTER(fd_status), [POINTER(fd_options), POINTER(POINTER(fd_engine))]),
    "fd_engine_destroy": (None, [POINTER(fd_engine)]),
    "fd_engine_describe": (owned_text, [POINTER(fd_engine)]),
    "fd_engine_stats_json": (owned_text, [POINTER(fd_engine)]),
    "fd_engine_stats_reset": (None, [POINTER(fd_engine)]),
    "fd_engine_stats": (c_int, [POINTER(fd_engine), POINTER(fd_stats)]),
    "fd_engine_home": (c_int, [POINTER(fd_engine), c_size_t, POINTER(fd_home_stats)]),
    "fd_engine_durations": (c_uint64, [POINTER(fd_engine), c_int, POINTER(c_uint64), c_size_t, POINTER(c_uint64),
                                       POINTER(c_uint64)]),
    "fd_engine_front_cores": (c_size_t, [POINTER(fd_engine), POINTER(c_int32), c_size_t]),
    "fd_engine_pages_json": (owned_text, [POINTER(fd_engine)]),
    "fd_string_free": (None, [owned_text]),
    "fd_vocab_size": (c_int32, [POINTER(fd_engine)]),
    "fd_max_context": (c_int32, [POINTER(fd_engine)]),
    "fd_max_choices": (c_uint32, [POINTER(fd_engine)]),
    "fd_has_tokenizer": (c_int, [POINTER(fd_engine)]),
    "fd_tokenizer_missing_reason": (c_char_p, [POINTER(fd_engine)]),
    "fd_tokenize": (POINTER(fd_status), [POINTER(fd_engine), POINTER(fd_prompt_part), c_size_t, c_int, POINTER(c_int32),
                                         c_size_t, POINTER(c_size_t)]),
    "fd_detokenize": (POINTER(fd_status), [POINTER(fd_engine), POINTER(c_int32), c_size_t, POINTER(owned_text),
                                           POINTER(c_size_t)]),
    "fd_detokenize_special": (POINTER(fd_status), [POINTER(fd_engine), POINTER(c_int32), c_size_t, POINTER(owned_text),
                                                   POINTER(c_size_t)]),
    "fd_token_bytes": (c_size_t, [POINTER(fd_engine), c_int32, POINTER(c_char), c_size_t]),
    "fd_model_describe": (owned_text, [POINTER(fd_engine)]),
    "fd_request_init": (None, [POINTER(fd_request), c_size_t]),
    "fd_default_sampling": (c_int, [POINTER(fd_engine), POINTER(fd_request)]),
    "fd_request_check": (POINTER(fd_status), [POINTER(fd_request)]),
    "fd_submit": (POINTER(fd_status), [POINTER(fd_engine), POINTER(fd_request), POINTER(c_uint64)]),
    "fd_cancel": (None, [POINTER(fd_engine), c_uint64]),
    "fd_has_chat_template": (c_int, [POINTER(fd_engine)]),
    "fd_chat_template_missing_reason": (c_char_p, [POINTER(fd_engine)]),
    "fd_chat_input_init": (None, [POINTER(fd_chat_input), c_size_t]),
    "fd_chat_render": (POINTER(fd_status), [POINTER(fd_engine), POINTER(fd_chat_input), POINTER(POINTER(fd_chat))]),
    "fd_chat_destroy": (None, [POINTER(fd_chat)]),
    "fd_chat_parts": (POINTER(fd_prompt_part), [POINTER(fd_chat), POINTER(c_size_t)]),
    "fd_chat_set_prompt": (c_int, [POINTER(fd_chat), POINTER(fd_request)]),
    "fd_chat_reader_create": (POINTER(fd_chat_reader), [POINTER(fd_chat)]),
    "fd_chat_read": (c_int, [POINTER(fd_chat_reader), c_char_p, c_size_t, c_int, POINTER(fd_chat_piece)]),
    "fd_chat_read_event": (c_int, [POINTER(fd_chat_reader), POINTER(fd_event), POINTER(fd_chat_piece)]),
    "fd_chat_reader_destroy": (None, [POINTER(fd_chat_reader)]),
    "fd_model_inspect": (POINTER(fd_status), [c_char_p, c_uint64, POINTER(owned_text)]),
    "fd_template_render": (POINTER(fd_status), [c_char_p, c_char_p, c_size_t, c_char_p, c_size_t, c_int64,
                                                POINTER(owned_text), POINTER(c_size_t)]),
    "fd_next": (c_int, [POINTER(fd_engine), c_uint64, POINTER(fd_event), c_int64]),
    "fd_poll": (c_int, [POINTER(fd_engine), POINTER(fd_event), c_size_t, c_int64]),
    "fd_engine_event_fd": (c_int, [POINTER(fd_engine)]),
    "fd_forget": (None, [POINTER(fd_engine), c_uint64]),
    "fd_drain": (c_size_t, [POINTER(fd_engine), c_int64]),
    "fd_worker_create": (POINTER(fd_status), [POINTER(fd_options), POINTER(POINTER(fd_worker))]),
    "fd_worker_describe": (owned_text, [POINTER(fd_worker)]),
    "fd_worker_run": (POINTER(fd_status), [POINTER(fd_worker)]),
    "fd_worker_stop": (None, [POINTER(fd_worker)]),
    "fd_worker_drain": (None, [POINTER(fd_worker)]),
    "fd_worker_destroy": (None, [POINTER(fd_worker)]),
    "fd_record_open": (POINTER(fd_status), [POINTER(fd_engine), POINTER(POINTER(fd_record))]),
    "fd_record_attach": (POINTER(fd_status), [c_char_p, POINTER(POINTER(fd_record))]),
    "fd_record_describe": (owned_text, [POINTER(fd_record)]),
    "fd_record_read": (c_int, [POINTER(fd_record), POINTER(fd_record_event), c_size_t, POINTER(c_uint64),
                                  POINTER(c_int)]),
    "fd_record_close": (None, [POINTER(fd_record)]),
    "fd_bench_request_init": (None, [POINTER(fd_bench_request), c_size_t]),
    "fd_bench_submit": (POINTER(fd_status), [POINTER(fd_engine), POINTER(fd_request), POINTER(fd_bench_request),
                                             POINTER(c_uint64)]),
    "fd_synth_shape_at": (c_char_p, [c_size_t]),
    "fd_synth_init": (None, [POINTER(fd_synth), c_size_t]),
    "fd_synthesize": (POINTER(fd_status), [POINTER(fd_synth)]),
}


# ---- Where it is found
def candidates() -> List[Path]:
    """Files that may be the library where the environment names none, the first one that is there to be taken."""
    package = Path(__file__).resolve().parent
    found = [package / "lib" / SONAME]  # brought by a wheel
    above = list(package.parents)
    if above[0].name in ("site-packages", "dist-packages"):
        # PREFIX/lib/python3/dist-packages, PREFIX/lib/python3.11/site-packages: installed under the same prefix
        for folder in above[1:3]:
            found += [folder / SONAME, folder / "x86_64-linux-gnu" / SONAME]
    elif len(above) > 2:
        found.append(above[2] / "build" / "release" / "tools" / SONAME)  # ROOT/tools/python: a source tree
    return found


def _open(file: str) -> CDLL:
    try:
        return CDLL(file)
    except OSError as error:
        raise LibraryError(f"{file} cannot be loaded: {error}") from None


def _find() -> CDLL:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        if not os.path.isfile(named):
            raise LibraryError(f"the environment variable {LIBRARY_VARIABLE} names {named}, where there is no file")
        return _open(os.path.abspath(named))
    looked = candidates()
    for file in looked:
        if file.is_file():
            return _open(str(file))
    try:
        return CDLL(SONAME)
    except OSError as error:
        places = "".join(f"\n  {file}" for file in looked)
        raise LibraryError(
            f"the engine's library {SONAME} was not found. Looked for:{places}\n  {SONAME} where the loader looks "
            f"({error})\nBuild it (`cmake --build --preset release`, in FastDecode's repository), install a wheel that "
            f"brings it (tools/python/make_wheel makes one), or name the file in the environment variable "
            f"{LIBRARY_VARIABLE}.") from None


def _bind(library: CDLL) -> CDLL:
    """Checks the version before any function is called that another version may not have."""
    name = library._name
    try:
        library.fd_abi_version.restype = c_uint32
        version = library.fd_abi_version()
    except AttributeError:
        raise LibraryError(f"{name} is no library of FastDecode: it has no fd_abi_version") from None
    if version != ABI_VERSION:
        raise LibraryError(f"{name} has ABI {version}, and this package needs ABI {ABI_VERSION}: package and library "
                           "must come from versions of FastDecode that go together")
    for function, (result, arguments) in FUNCTIONS.items():
        try:
            bound = getattr(library, function)
        except AttributeError:
            raise LibraryError(f"{name} has no {function}: it is older than this package") from None
        bound.restype = result
        bound.argtypes = arguments
    return library


_lock = threading.Lock()
_library: Optional[CDLL] = None


def load() -> CDLL:
    """The library, found and checked when it is asked for first."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _bind(_find())
    return _library


# ---- What calls have in common
def check(status: Any) -> None:
    """Raises what a function that can fail has returned."""
    if not status:
        return
    library = load()
    error = error_of(library.fd_status_code(status), library.fd_status_message(status).decode(errors="replace"))
    library.fd_status_destroy(status)
    raise error


def take_text(text: Any) -> str:
    """Takes over a string that the library made."""
    if not text:
        raise MemoryError("no memory for a text of the engine")
    copy = ctypes.string_at(text).decode(errors="replace")
    load().fd_string_free(text)
    return copy
