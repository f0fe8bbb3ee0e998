"""Ctrl-C ends a model's computation. Python runs no handler of a signal while a call of the library is under way; so the
signal is noted, the library, which asks a few times a second, ends the call, and then the handler runs."""

import ctypes
import signal
import threading
from typing import Any, Callable, Optional, Tuple


class Interrupts:
    check_type = ctypes.CFUNCTYPE(ctypes.c_int32)

    def __init__(self) -> None:
        self._noted: Optional[Tuple[int, Any]] = None
        self._check = self.check_type(lambda: int(self._noted is not None))  # kept: the library holds its address

    def install(self, on_interrupt: Callable[..., Any]) -> None:
        on_interrupt(self._check)

    def _note(self, number: int, frame: Any) -> None:
        self._noted = (number, frame)

    def through(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, ended by Ctrl-C where that means KeyboardInterrupt. A handler of the program's own is left alone,
        and so are other threads, which get no signals."""

        def call(*arguments: Any) -> Any:
            handler = signal.getsignal(signal.SIGINT)
            if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
                return function(*arguments)
            try:
                signal.signal(signal.SIGINT, self._note)
            except ValueError:  # an interpreter that is not the main one
                return function(*arguments)
            try:
                return function(*arguments)
            finally:
                signal.signal(signal.SIGINT, handler)
                noted, self._noted = self._noted, None
                if noted is not None:
                    handler(*noted)

        return call


interrupts = Interrupts()
