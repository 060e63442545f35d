"""Errors, by who must act on them: senders fix a `BadLine`, operators a `CorruptRow`, callers retry a `StoreError`.

Messages have what was got and what was wanted; bytes are in hex.
"""

import errno
import re
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded")  # of RocksDB, which raises errors without number


class TsdError(Exception):
    """Base class of the package's errors."""


class BadLine(TsdError):
    """A line that its sender must fix. It is answered and counted, and never retried.

    `reason` is its counter (OpenTSDB's `tsd.rpc.errors type=`, see `REASONS`). `str(error)` follows the command's name
    in the reply, e.g. ``illegal argument: invalid tag: host``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# Reasons for rejecting a line. The first three are OpenTSDB's counters.
INVALID_VALUE = "invalid_values"
ILLEGAL_ARGUMENT = "illegal_arguments"
UNKNOWN_NAME = "unknown_metrics"
LINE_TOO_LONG = "line_too_long"
UIDS_EXHAUSTED = "uids_exhausted"
NEW_NAMES = "too_many_new_names"  # the limit of new names in a minute
TOO_MANY_SERIES = "too_many_series"
JOURNAL_DAMAGED = "journal_damaged"  # acknowledged lines whose bytes on disk changed; they are quarantined
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
    """Invalid settings; `problems` has a sentence for each error."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CorruptRow(TsdError):
    """Stored bytes violate FORMATS.md. The operator must fix them: the daemon does not guess."""


class CorruptJournal(TsdError):
    """A journal segment's bytes are not those that were written. Whole blocks before them are used."""


class NoSuchName(TsdError):
    """A name without a UID, or a UID without a name."""


class UidsExhausted(TsdError):
    """All UIDs of a kind are assigned."""


class StoreError(TsdError):
    """A call to the store failed. It may be repeated unchanged."""


class StoreBusy(StoreError):
    """The store is overloaded: slow down, then repeat the call."""


class InvalidCell(StoreError):
    """A row key, column or counter that no engine accepts. Nothing of the call was applied."""


class TooManyVersions(TsdError):
    """A read has more than the caller's limit: repeating it does not help."""


class WrongClock(StoreError):
    """This machine's clock and the store's differ too much: the operator has to synchronise them. Nothing was
    written."""


class NoTable(StoreError):
    """The store has no such table; `tsd create-tables` creates it."""


class WrongTable(StoreError):
    """A table cannot keep what it is for: the operator has to alter it."""


class UnfitSettings(WrongTable):
    """The tables were written with other settings of UIDs or row keys: the operator has to set those."""


class DamagedBlock(StoreError):
    """A block of rows cannot be read."""

    def __init__(self, message: str, prefix: bytes = b"") -> None:
        """All rows of the block have keys that start with `prefix`; empty if it is not known."""
        super().__init__(message)
        self.prefix = prefix


class StoreDown(StoreError):
    """No answer. Whether the call was applied is unknown; it may be repeated."""


class PointsWait(StoreDown):
    """The store takes no points now, so that what is read from it lacks some."""

    def __init__(self) -> None:
        super().__init__("accepted points wait in the journal and cannot be written to the store now")


class DaemonRuns(TsdError):
    """Another process has locked the state folder."""


class NewerState(TsdError):
    """The state folder has a newer format."""


class Refused(TsdError):
    """A request that is answered with an error: an HTTP `status`, and OpenTSDB's `message` and `details`."""

    def __init__(self, status: int, message: str, details: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details
        self.headers = headers


class BadQuery(Refused):
    """An invalid query: status 400, or the one that OpenTSDB has (docs/compat/query.md §15)."""

    def __init__(self, message: str, *, status: int = 400, details: str = "") -> None:
        super().__init__(status, message, details)


class UnknownName(BadQuery):
    """A query of a name that no table has. `kind` is OpenTSDB's word: metrics, tagk or tagv."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"No such name for '{kind}': '{name}'")


def bare(error: E) -> E:
    """Return an error without its traceback and cause, to keep it or to chain it.

    The frames of a traceback hold large buffers, and lists that hold the error: a reference cycle, which the garbage
    collector finds late because it counts objects and not bytes.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def json_mistake(error: Exception) -> str:
    """Return why a client's text is not JSON that can be read.

    >>> json_mistake(RecursionError("maximum recursion depth exceeded"))
    'got arrays or objects nested too deeply, wanted fewer levels'
    """
    return (
        "got arrays or objects nested too deeply, wanted fewer levels"
        if isinstance(error, RecursionError)
        else str(error)
    )


def lacks_space(error: BaseException) -> bool:
    """Return whether an error, or all errors of a group, come from a full disk.

    >>> lacks_space(OSError(errno.ENOSPC, "")), lacks_space(OSError(errno.EACCES, "")), lacks_space(ValueError())
    (True, False, False)
    """
    if isinstance(error, BaseExceptionGroup):
        return all(lacks_space(one) for one in error.exceptions)
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return FULL_TEXT.search(str(error)) is not None or (error.__cause__ is not None and lacks_space(error.__cause__))
