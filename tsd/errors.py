"""What can go wrong, named by who must act on it.

`BadLine` goes back to the sender, `CorruptRow` to the operator, `StoreError` to whoever may try again. Messages say
what was got and what was wanted; bytes are shown in hex.
"""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class TsdError(Exception):
    """Base of everything this package raises on purpose."""


class BadLine(TsdError):
    """A line that its sender must mend: answered, counted, never retried.

    `reason` is the counter it falls under (OpenTSDB's `tsd.rpc.errors type=`, see `REASONS`), `str(error)` the text
    that follows the command's name in the reply, e.g. ``illegal argument: invalid tag: host``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# Why a line was refused. The first three are OpenTSDB's own counters; the others are ours.
INVALID_VALUE = "invalid_values"
ILLEGAL_ARGUMENT = "illegal_arguments"
UNKNOWN_NAME = "unknown_metrics"
LINE_TOO_LONG = "line_too_long"
UIDS_EXHAUSTED = "uids_exhausted"
NEW_NAMES = "too_many_new_names"  # more than may get a UID within a minute
TOO_MANY_SERIES = "too_many_series"
JOURNAL_DAMAGED = "journal_damaged"  # acknowledged lines whose bytes on disk changed: set aside, and named in the log
REASONS = (
    INVALID_VALUE,
    ILLEGAL_ARGUMENT,
    UNKNOWN_NAME,
    LINE_TOO_LONG,
    UIDS_EXHAUSTED,
    NEW_NAMES,
    TOO_MANY_SERIES,
    JOURNAL_DAMAGED,
)


class BadConfig(TsdError):
    """Settings that cannot be used; `problems` holds one sentence for each, all of them at once."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CorruptRow(TsdError):
    """Stored bytes break FORMATS.md. The operator's to mend: nothing is repaired by guessing."""


class CorruptJournal(TsdError):
    """A journal segment's bytes are not what was written. What is whole before them is kept."""


class NoSuchName(TsdError):
    """A name without UID, or a UID without name."""


class UidsExhausted(TsdError):
    """Every UID of a kind is handed out."""


class StoreError(TsdError):
    """The store did not do what was asked. The same call may be sent again, unchanged."""


class StoreBusy(StoreError):
    """The store answers, but asks for less: slow down, then send again."""


class NoTable(StoreError):
    """The store answers, and has no such table: it is made by `tsd create-tables`."""


class StoreDown(StoreError):
    """No answer. Whether the call was applied is not known, and does not matter: it may be repeated."""


class DaemonRuns(TsdError):
    """The state folder belongs to a running daemon."""


class NewerState(TsdError):
    """The state folder is of a newer version."""


class Refused(TsdError):
    """A request that is answered with an error: HTTP's `status`, and OpenTSDB's `message` and `details`."""

    def __init__(self, status: int, message: str, details: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details
        self.headers = headers


class BadQuery(Refused):
    """A query that cannot be run as it was asked: 400 unless OpenTSDB says otherwise (query.md §15)."""

    def __init__(self, message: str, *, status: int = 400, details: str = "") -> None:
        super().__init__(status, message, details)


def bare(error: E) -> E:
    """An error that is to be kept, or is another's cause, without what led to it. Its frames hold all that was at hand,
    a line's whole block or a connection's buffers, and lists that hold the error: a circle, which the collector finds
    late, as it counts objects and not bytes."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
