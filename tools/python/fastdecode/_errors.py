"""What this package raises."""

from __future__ import annotations

from typing import Dict, Tuple, Type


class FastDecodeError(Exception):
    """An error of the engine. `code` is its fd_code, and `message` names file or field, and value."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidArgument(FastDecodeError, ValueError):
    """An option, a model's file, a prompt or a sampling parameter that cannot be."""


class NotFound(FastDecodeError):
    """What was named is not there."""


class AlreadyExists(FastDecodeError):
    """Such as a socket path in use, or a GPU that another engine of this process has."""


class PermissionDenied(FastDecodeError):
    """The operating system or a worker refused it."""


class ResourceExhausted(FastDecodeError):
    """There is not enough memory, or there are not enough threads or file descriptors."""


class QueueFull(ResourceExhausted):
    """The engine takes no further request now: as many wait or run as its option max_queue allows, or it has no memory
    for one more. Try again when others have ended."""


class FailedPrecondition(FastDecodeError):
    """Such as a worker with another model shape."""


class InternalError(FastDecodeError):
    """The engine is at fault."""


class Unavailable(FastDecodeError):
    """A worker cannot be reached, or the engine is draining."""


class EngineClosed(Unavailable):
    """The engine was closed, or belongs to another process."""


class LibraryError(FastDecodeError, ImportError):
    """The engine's shared library is not there, cannot be loaded, or is another version than this package needs."""

    def __init__(self, message: str) -> None:
        FastDecodeError.__init__(self, NOT_FOUND, message)

    def __reduce__(self) -> Tuple[Type[LibraryError], Tuple[str]]:
        return LibraryError, (self.message,)


# Codes of fd_code.
INVALID_ARGUMENT = 3
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
INTERNAL = 13
UNAVAILABLE = 14

_CLASSES: Dict[int, Type[FastDecodeError]] = {
    INVALID_ARGUMENT: InvalidArgument,
    NOT_FOUND: NotFound,
    ALREADY_EXISTS: AlreadyExists,
    PERMISSION_DENIED: PermissionDenied,
    RESOURCE_EXHAUSTED: ResourceExhausted,
    FAILED_PRECONDITION: FailedPrecondition,
    INTERNAL: InternalError,
    UNAVAILABLE: Unavailable,
}


def error_of(code: int, message: str) -> FastDecodeError:
    """The error of an fd_code."""
    return _CLASSES.get(code, FastDecodeError)(code, message)


def invalid(message: str) -> InvalidArgument:
    return InvalidArgument(INVALID_ARGUMENT, message)
