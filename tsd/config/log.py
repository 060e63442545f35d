"""Structured logging with a rate limit for each event. No part of the daemon logs a line for each data point.

An event has a stable name, `noun.verb` or `subject.state`, and fields; `python -m scripts.log_events` lists them.
"""

import logging
import os
import select
import sys
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import datetime
from typing import Any, TextIO

from tsd.lazy import without_package

with without_package("rich"):  # its import takes a tenth of a start, and tracebacks are plain (`_plain_trace`)
    import structlog

Event = MutableMapping[str, Any]

BURST = 20  # events of one name per period; further ones are only counted
PERIOD_S = 60.0
_NO_FIELDS = ("event", "timestamp", "level", "exc_info", "exception")
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}


LEVELS = ("debug", "info", "warning", "warn", "error")
RING_LINES = 1024
LINE_CHARS = 8000  # journald's LineMax= is 48 KiB, and a character has up to 4 bytes
PART_CHARS = select.PIPE_BUF // 4  # as many bytes fit into a pipe that can be written
READER_WAIT_MS = 1000  # for the reader of standard error
_ring: deque[str] = deque(maxlen=RING_LINES)  # newest events of this process, for /logs


class RateLimit:
    """Passes `BURST` events of one name in a period. The first event of the next one has the number of dropped ones."""

    def __init__(self) -> None:
        self._periods: dict[str, tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        now = float(event.pop("_monotonic"))
        key = event.pop("_limit_key", event["event"])
        if key is None:  # never dropped
            return event
        key = str(key)
        start, count = self._periods.get(key, (now, 0))
        if now - start >= PERIOD_S:
            if count > BURST:
                event["dropped_events"] = count - BURST
            start, count = now, 0
        self._periods[key] = start, count + 1
        if count >= BURST:
            raise structlog.DropEvent
        return event


class LibraryHandler(logging.Handler):
    """Logs records of Python's `logging`, which libraries use, as events: with the rate limit, without tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = structlog.get_logger(__name__)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. The rate limit applies to each call in a library's code."""
        error = record.exc_info[1] if record.exc_info else None
        log = self._log
        (log.error if record.levelno >= logging.ERROR else log.warning)(
            "library.message", _limit_key=f"{record.pathname}:{record.lineno}", library=record.name,
            message=record.getMessage(), error=None if error is None else repr(error),
        )  # fmt: skip


def _journald_line(_logger: object, method: str, event: Event) -> str:
    """Return `<priority>event key=value …`: journald reads the priority, and adds the time."""
    words = [str(event.pop("event"))]
    trace = event.pop("exception", None)
    event.pop("level", None)
    event.pop("timestamp", None)
    words += [f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in event.items()]
    lines = " ".join(words).splitlines() + (str(trace).splitlines() if trace else [])
    return "\n".join(f"<{_PRIORITIES.get(method, 6)}>{_bounded(line)}" for line in lines)


def _bounded(line: str) -> str:
    """Return a line short enough for journald, which splits longer ones and gives the rest no priority."""
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}… ({len(line) - LINE_CHARS} more)"


def _drop_empty(_logger: object, _method: str, event: Event) -> Event:
    for key in [key for key, value in event.items() if value is None]:
        del event[key]
    return event


def _shown(text: str) -> str:
    """Return a text without control characters, which a client could use to control the terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _plain_trace(file: TextIO, error: Any) -> None:
    """Write a traceback without local variables, which may hold tokens."""
    file.write("\n" + "\n".join(map(_shown, "".join(traceback.format_exception(*error)).splitlines())))


def _visible(_logger: object, _method: str, event: Event) -> Event:
    """Remove control characters from an event."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _shown(value)
    return event


def _keep(_logger: object, method: str, event: Event) -> Event:
    """Store an event for /logs in OpenTSDB's form: `<Unix s> <LEVEL> <thread> <logger> <message>`, separated by
    tabs."""
    fields = " ".join(f"{key}={value!r}" for key, value in event.items() if key not in _NO_FIELDS)
    seconds = int(datetime.fromisoformat(str(event["timestamp"])).timestamp())
    message = f"{event['event']} {fields}".rstrip().replace("\n", " ")
    _ring.append(f"{seconds}\t{method.upper()}\tmain\ttsd\t{message}")
    return event


def recent_lines() -> list[str]:
    """Return the latest events, newest first, without tracebacks."""
    return list(reversed(_ring))


def set_level(level: str) -> None:
    """Log events of this level and above; `level` is one of LEVELS."""
    logger = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    structlog.configure(**{**structlog.get_config(), "wrapper_class": logger})


def _goes_to_journald() -> bool:
    """Return whether standard error is systemd's journal. A shell in between may have redirected it."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _StandardError(structlog.PrintLogger):
    """Writes lines to standard error, and ignores errors: its terminal may be gone.

    If the reader of a pipe or a terminal has stopped, a write would wait, and the daemon with it. Then lines are
    dropped and counted.
    """

    dropped = 0  # lines since the reader has stopped
    end = ""  # of a line that was cut then

    def __init__(self, *_: object) -> None:
        super().__init__(sys.stderr)

    def msg(self, message: str) -> None:
        """Write a line, or drop it."""
        own = _StandardError
        with self._lock:  # threads log, too
            dropped = own.dropped if own.dropped and self._is_read(wait_ms=0) else 0
            own.dropped -= dropped
        if dropped:
            log = structlog.get_logger(__name__)
            log.warning("log.lines_dropped", _limit_key=None, lines=dropped)
        with self._lock, suppress(OSError, ValueError):
            text = f"{own.end}{message}\n"
            for at in range(0, len(text), PART_CHARS):
                if not self._is_read(wait_ms=0 if own.dropped else READER_WAIT_MS):
                    own.dropped += 1
                    own.end = "\n" if at else own.end
                    return
                self._file.write(text[at : at + PART_CHARS])
                self._file.flush()
            own.end = ""

    def _is_read(self, *, wait_ms: int) -> bool:
        """Return whether a part of a line can be written within `wait_ms`."""
        poll = select.poll()
        try:
            poll.register(self._file.fileno(), select.POLLOUT)
        except (OSError, ValueError):  # it is closed, or no file
            return True
        return bool(poll.poll(wait_ms))

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def configure(level: str, form: str, monotonic: Callable[[], float]) -> None:
    """Write events of `level` and above, and those of libraries, to standard error.

    `form` is console, json, journald, or auto: journald if standard error is systemd's journal, otherwise console.
    """
    logging.getLogger().handlers = [LibraryHandler()]
    if form == "auto":
        form = "journald" if _goes_to_journald() else "console"
    renderer: Any = {
        "json": structlog.processors.JSONRenderer(default=str),
        "journald": _journald_line,
        "console": structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=_plain_trace
        ),
    }[form]

    def stamp(_logger: object, _method: str, event: Event) -> Event:
        event["_monotonic"] = monotonic()
        return event

    structlog.configure(
        processors=[
            stamp,
            RateLimit(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _drop_empty,
            _keep,
            _visible if form == "console" else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_StandardError,
        cache_logger_on_first_use=False,
    )
