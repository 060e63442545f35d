"""The longest time that a stop takes.

A disk that hangs blocks threads, which cannot be cancelled: the process then ends without them, as if it were killed.
The journal has all acknowledged lines.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

REPORT_S = 1.0  # the log may be on the same disk
STATUS = 1  # of the process


class StopLimit:
    """Ends the process if a stop takes too long."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, seconds: float, left: Callable[[], Mapping[str, object]]) -> None:
        """End the process after some seconds, unless `end` is called before. `left` returns what is logged then."""
        self.end()
        self._timer = threading.Timer(seconds, _end_process, (left,))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Cancel the limit: the process is not ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _end_process(left: Callable[[], Mapping[str, object]]) -> None:
    def report() -> None:
        fields: Mapping[str, object] = {}
        with suppress(RuntimeError):  # the event loop changes what is counted
            fields = left()
        log.error("daemon.stop_timed_out", **fields)

    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    reporting.join(REPORT_S)
    os._exit(STATUS)
