"""The end of the process waits for calls that are under way in daemon threads. Code of oneDNN is generated while a
program runs, and freed when it exits, also under a thread that runs it."""

import atexit
import os
import threading
from typing import Any, Callable, Optional


class ExitGate:
    def __init__(self) -> None:
        self._open()
        atexit.register(self._close)
        os.register_at_fork(after_in_child=self._open)  # the child has none of the threads that are under way

    def _open(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._exiting: Optional[int] = None  # the thread that ends the process, which may still call

    def _close(self) -> None:
        with self._changed:
            self._exiting = threading.get_ident()
            self._changed.wait_for(lambda: self._under_way == 0)

    def through(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; a call that comes too late never returns."""

        def call(*arguments: Any) -> Any:
            with self._changed:
                self._changed.wait_for(lambda: self._exiting in (None, threading.get_ident()))
                self._under_way += 1
            try:
                return function(*arguments)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()

        return call


gate = ExitGate()
