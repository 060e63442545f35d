"""Logging: structured, and bounded in what it may write: no part of the daemon logs a line for each data point."""

import logging
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import datetime
from typing import Any, TextIO

import structlog

Event = MutableMapping[str, Any]

BURST = 20  # events of one wording in one period; more are counted and said at the next one
PERIOD_S = 60.0
_NOT_TOLD = ("event", "timestamp", "level", "exc_info", "exception")
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}


LEVELS = ("debug", "info", "warning", "warn", "error")
RING_LINES = 1024
LINE_CHARS = 8000  # journald's LineMax= is 48 KiB, of characters of 4 bytes at most
_ring: deque[str] = deque(maxlen=RING_LINES)  # the latest events: of the process, like the log itself


class RateLimit:
    """Lets `BURST` events of one wording through in a period, and says with the next one how many were left out."""

    def __init__(self) -> None:
        self._periods: dict[str, tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        now = float(event.pop("_monotonic"))
        wording = event.pop("_wording", event["event"])
        if wording is None:  # one that nothing may hide
            return event
        wording = str(wording)
        start, count = self._periods.get(wording, (now, 0))
        if now - start >= PERIOD_S:
            if count > BURST:
                event["left_out"] = count - BURST
            start, count = now, 0
        self._periods[wording] = start, count + 1
        if count >= BURST:
            raise structlog.DropEvent
        return event


class FromLibraries(logging.Handler):
    """Passes on what libraries log by Python's own module: in our form, under our limits, without their tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = structlog.get_logger(__name__)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. Records of one template are of one wording, whatever they tell."""
        error = record.exc_info[1] if record.exc_info else None
        say = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        because = None if error is None else repr(error)
        say(record.getMessage(), _wording=str(record.msg), library=record.name, because=because)


def _journald_line(_logger: object, method: str, event: Event) -> str:
    """`<priority>wording key=value …`: journald takes the priority, and has the time itself."""
    words = [str(event.pop("event"))]
    trace = event.pop("exception", None)
    event.pop("level", None)
    event.pop("timestamp", None)
    words += [f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in event.items()]
    lines = " ".join(words).splitlines() + (str(trace).splitlines() if trace else [])
    return "\n".join(f"<{_PRIORITIES.get(method, 6)}>{_bounded(line)}" for line in lines)


def _bounded(line: str) -> str:
    """A line that journald keeps in one piece: the rest of a longer one would come without its priority."""
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}… ({len(line) - LINE_CHARS} more)"


def _drop_empty(_logger: object, _method: str, event: Event) -> Event:
    for key in [key for key, value in event.items() if value is None]:
        del event[key]
    return event


def _shown(text: str) -> str:
    """A text that a terminal can only show: a stranger's could hold its commands."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _plain_trace(file: TextIO, error: Any) -> None:
    """Write a trace without what its frames hold: tokens are among it."""
    file.write("\n" + "\n".join(map(_shown, "".join(traceback.format_exception(*error)).splitlines())))


def _visible(_logger: object, _method: str, event: Event) -> Event:
    """No text of an event is more than shown."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _shown(value)
    return event


def _keep(_logger: object, method: str, event: Event) -> Event:
    """Keep an event as a line of OpenTSDB's form: `<Unix s> <LEVEL> <thread> <logger> <message>`, tabs between."""
    told = " ".join(f"{key}={value!r}" for key, value in event.items() if key not in _NOT_TOLD)
    seconds = int(datetime.fromisoformat(str(event["timestamp"])).timestamp())
    message = f"{event['event']} {told}".rstrip().replace("\n", " ")
    _ring.append(f"{seconds}\t{method.upper()}\tmain\ttsd\t{message}")
    return event


def recent_lines() -> list[str]:
    """The latest events, newest first, without traces."""
    return list(reversed(_ring))


def set_level(level: str) -> None:
    """Log events of this one of LEVELS and above from now on."""
    number = getattr(logging, level.upper())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number), **_all_but("wrapper_class"))


def _all_but(name: str) -> dict[str, Any]:
    return {key: value for key, value in structlog.get_config().items() if key != name}


def _goes_to_journald() -> bool:
    """Whether standard error is what systemd connected to its journal: a shell that it started may have put another in
    its place."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _StandardError(structlog.PrintLogger):
    """Writes lines to standard error; where that has gone, with its terminal say, the daemon lives on without."""

    def __init__(self, *_: object) -> None:
        super().__init__(sys.stderr)

    def msg(self, message: str) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def configure(level: str, form: str, monotonic: Callable[[], float]) -> None:
    """Send events of `level` and above to standard error, as `form` says (auto: what standard error is); and those of
    libraries."""
    logging.getLogger().handlers = [FromLibraries()]
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
