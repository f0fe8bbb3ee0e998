"""The kinds of errors of the library as exceptions of Python: one for each status of include/rootdk/c_api.h."""

from typing import Dict, Type

INVALID_ARGUMENT = 1


class DeviceError(RuntimeError):
    """The device or its driver failed."""


class FileError(OSError, ValueError):
    """A file is missing, cannot be read or written, or does not hold what it should."""


class UnsupportedError(NotImplementedError, ValueError):
    """The call makes sense, but nothing that is built here serves it."""


_ERRORS: Dict[int, Type[Exception]] = {
    INVALID_ARGUMENT: ValueError,
    2: MemoryError,
    3: RuntimeError,
    4: UnsupportedError,
    5: DeviceError,
    6: FileError,
}


def error_of(status: int, message: str) -> Exception:
    return _ERRORS.get(status, RuntimeError)(message)
