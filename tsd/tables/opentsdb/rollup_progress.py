"""Up to when each rollup table is complete, and where late points came since: in memory and in a file.

Rollups of an hour, and those that contain it, may differ from its points while the hour is listed as late. The list is
on disk before the journal forgets the late points, so that a crash does not lose it.

Commands record days in the file while no daemon answers, which may be starting. A lock makes each change of the file
one step, and the daemon takes over what a command recorded since.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import HOUR_S
from tsd.config.files import exists
from tsd.config.state_dir import write_atomically
from tsd.tables.opentsdb.rollup_sums import DAY_S

MOST_LATE_DAYS = 10_000  # days of metrics; beyond it all tables are built again from the first of them
ROLLUPS_FILE = "rollup-progress.json"  # in the state folder: the progress of the daemon's rollups
# A block in which rows of points change by other ways than the daemon's intake, by their keys: their rollups are built
# again.
Changing = Callable[[Sequence[bytes]], AbstractAsyncContextManager[None]]


class BuildRange(NamedTuple):
    """What is built: the intervals that lie between two times as a whole."""

    first_s: int
    end_s: int  # exclusive
    metrics: tuple[bytes, ...] = ()  # UIDs in order; empty: all metrics
    closed_s: int = 0  # rows of rollups that end by then are over, as are those that end by `end_s`


class BuildPosition(NamedTuple):
    """Where the next part begins."""

    metric: bytes = b""
    day_s: int = 0


START = BuildPosition()


class LateDay(NamedTuple):
    """A day of a metric that got points after its rollups were built."""

    metric: bytes  # UID
    day_s: int

    @property
    def hours(self) -> range:
        """The first seconds of all its hours."""
        return range(self.day_s, self.day_s + DAY_S, HOUR_S)


LateHours = Mapping[LateDay, Collection[int]]  # the first seconds of hours, by day


def whole(days: Iterable[LateDay]) -> LateHours:
    """Return all hours of some days."""
    return {day: day.hours for day in days}


def unobserved(_rows: Sequence[bytes]) -> AbstractAsyncContextManager[None]:
    """Return a `Changing` that does nothing."""
    return nullcontext()


def days_of(layout: KeyLayout, rows: Iterable[bytes]) -> set[LateDay]:
    """Return the days of metrics that rows of points belong to, by their keys. Other rows have none."""
    end, salt = layout.metric_end, layout.salt_width
    hours = {row[salt : layout.pairs_start] for row in rows if len(row) >= layout.pairs_start}
    size = end - salt
    return {LateDay(hour[:size], int.from_bytes(hour[size:], "big") // DAY_S * DAY_S) for hour in hours}


def with_later_days(saved: bytes, later: bytes) -> bytes:
    """Return the content of a file of progress, with the late days of a later one. It fits a store that has the rollups
    of the first one, and points of both."""
    try:
        first, second = json.loads(saved), json.loads(later)
        if first["tables"] != second["tables"]:
            return saved
        complete_s = {name: min(at_s, second["complete_s"][name]) for name, at_s in first["complete_s"].items()}
        if complete_s != first["complete_s"]:  # it went back
            first |= {"complete_s": complete_s, "pass": None}
        first["late"] = _described(_parsed([*first["late"], *second["late"]]))
        emptied = [*first.get("emptied", ()), *second.get("emptied", ())]
        first["emptied"] = [list(day) for day in dict.fromkeys(map(tuple, emptied))]
    except (ValueError, LookupError, TypeError, AttributeError):  # damaged: nothing is complete
        return saved
    return json.dumps(first).encode()


def _parsed(entries: Iterable[Sequence[Any]]) -> dict[LateDay, set[int]]:
    """Return the late hours of a file. Each entry has the UID of a metric, the first second of a day, and the numbers
    of its late hours. Without these numbers the whole day is late."""
    found: dict[LateDay, set[int]] = {}
    for metric, day_s, *numbers in entries:
        day = LateDay(bytes.fromhex(metric), int(day_s))
        hours = [day.hours[number] for number in numbers[0]] if numbers else day.hours
        found.setdefault(day, set()).update(hours)
    return found


def _described(late: LateHours) -> list[list[Any]]:
    """Return the entries of a file."""
    return [
        [day.metric.hex(), day.day_s]
        if len(hours) == len(day.hours)
        else [day.metric.hex(), day.day_s, [day.hours.index(hour) for hour in sorted(hours)]]
        for day, hours in late.items()
    ]


def record_late(file: Path, days: Collection[LateDay], *, deleted: bool) -> None:
    """Record in a daemon's file that points of some days came late, or were `deleted`. Without a file no daemon builds
    rollups. Raise OSError."""
    if not exists(file):
        return
    with _locked(file):
        progress = RollupProgress.in_file(file)
        if progress is not None and progress.mark(whole(progress.concerned(days, deleted=deleted)), deleted=deleted):
            progress.write()


def reset_progress(file: Path) -> None:
    """Let a later daemon build all rollups, as from now on the file lacks changes. Only days stay whose points were
    deleted: a build of all leaves rollups without points. Raise OSError."""
    if not exists(file):
        return
    with _locked(file):
        progress = RollupProgress.in_file(file)
        if progress is not None:
            progress.rewind(0)
        if progress is not None and progress.late_days:
            progress.write()
        else:
            file.unlink(missing_ok=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let no other process change the file in the block. Raise OSError."""
    lock = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _replace(file: Path, expected: bytes | None, text: bytes) -> bytes:
    """Write the file, unless it is neither absent nor as expected. Return its content. Raise OSError."""
    with _locked(file):
        found = _content(file)
        if found is not None and found != expected:
            return found
        write_atomically(file, text)
        return text


class RollupPass(NamedTuple):
    """A build of all metrics that is under way."""

    intervals: tuple[str, ...]  # names
    range: BuildRange
    position: BuildPosition = START


class RollupProgress:
    """The state of the rollups that a daemon builds."""

    def __init__(self, file: Path, tables: Mapping[str, str]) -> None:
        """`tables` are the rollup tables by the names of their intervals."""
        self._file = file
        self._tables = dict(tables)
        self._saving = trio.Lock()
        self._saved: bytes | None = None  # the file as of the last save or load
        self.complete_s = dict.fromkeys(tables, 0)  # by interval: its rollups are complete before this time
        self.current: RollupPass | None = None
        self.rewinds = 0  # how often `complete_s` went back
        self._late: dict[bytes, dict[int, dict[int, int]]] = {}  # metric → day → hour → number of the last change
        self._emptied: set[LateDay] = set()  # of these days, points were deleted
        self._held: Counter[LateDay] = Counter()  # how many changes of the points of a day are under way
        self._changes = 0
        self.late_days = 0
        self._late_hours = 0
        self._added = self._added_saved = 0  # changes by `mark`, now and in the file

    @classmethod
    def in_file(cls, file: Path) -> "RollupProgress | None":
        """Return the state in a file; None if no daemon builds rollups there. Raise OSError."""
        try:
            saved = json.loads(file.read_bytes())
            found = cls(file, saved["tables"])
            found._take(saved)
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return found

    async def load(self) -> None:
        """Read the file. Without one, or if it is unreadable, nothing is complete. In a file about other tables only
        the days count whose points were deleted: these tables may be copies, with the rollups. Raise OSError."""
        self._saved = await trio.to_thread.run_sync(_content, self._file)
        try:
            if self._saved is not None:
                self._take(self._read(self._saved))
        except (ValueError, LookupError, TypeError):
            return

    def _read(self, text: bytes) -> dict[str, Any]:
        """Return a file's content, of which only deleted points count if it is about other tables."""
        saved: dict[str, Any] = json.loads(text)
        if saved["tables"] != self._tables:
            emptied = saved.get("emptied", [])
            saved |= {"complete_s": dict.fromkeys(self._tables, 0), "pass": None, "late": emptied}
        return saved

    def _take(self, saved: Mapping[str, Any]) -> None:
        complete_s = {name: int(saved["complete_s"][name]) for name in self._tables}
        late = _parsed(saved["late"])
        emptied = [LateDay(bytes.fromhex(metric), int(day_s)) for metric, day_s in saved.get("emptied", ())]
        current = None
        if saved["pass"] is not None:
            names, first_s, end_s, metric, day_s = saved["pass"]
            current = RollupPass(
                tuple(map(str, names)),
                BuildRange(int(first_s), int(end_s)),
                BuildPosition(bytes.fromhex(metric), int(day_s)),
            )
        self.complete_s, self.current = complete_s, current
        for day, hours in late.items():
            self._mark(day, hours)
        self._emptied.update(emptied)

    async def save(self) -> None:
        """Write the file, and sync it. Raise OSError."""
        async with self._saving:
            while True:
                text, added = self._encoded(), self._added
                found = await trio.to_thread.run_sync(_replace, self._file, self._saved, text)
                if found == text:
                    self._saved, self._added_saved = text, added
                    return
                self._take_recorded(found)

    async def take_recorded(self) -> None:
        """Take over what commands recorded in the file. Raise OSError."""
        async with self._saving:
            found = await trio.to_thread.run_sync(_content, self._file)
            if found is not None and found != self._saved:
                self._take_recorded(found)

    def _take_recorded(self, text: bytes) -> None:
        """Take over what a command recorded in the file since the last save."""
        before, self._saved = self._saved, text
        try:
            saved = self._read(text)
            late = _parsed(saved["late"])
            emptied = [LateDay(bytes.fromhex(metric), int(day_s)) for metric, day_s in saved.get("emptied", ())]
            complete_s = {name: int(saved["complete_s"][name]) for name in self._tables}
            last_s = None if before is None else self._read(before)["complete_s"]
        except (ValueError, LookupError, TypeError):  # damaged: the next save replaces it
            return
        self.mark(late)
        self.mark(whole(emptied), deleted=True)
        if last_s is not None and any(at_s < int(last_s[name]) for name, at_s in complete_s.items()):
            self.rewind(min(complete_s.values()))  # too many days for the list

    def write(self) -> None:
        """Write the file, and sync it, without a comparison with its content. Raise OSError."""
        write_atomically(self._file, self._encoded())

    def _encoded(self) -> bytes:
        current = self.current
        content = {
            "tables": self._tables,
            "complete_s": self.complete_s,
            "pass": current
            and [
                current.intervals,
                current.range.first_s,
                current.range.end_s,
                current.position.metric.hex(),
                current.position.day_s,
            ],
            "late": _described(self._every()),
            "emptied": [[metric.hex(), day_s] for metric, day_s in self._emptied],
        }
        return json.dumps(content).encode()

    @property
    def limit_s(self) -> int:
        """The time from which on no point is late."""
        return max(*self.complete_s.values(), self.current.range.end_s if self.current else 0)

    def concerned(self, days: Iterable[LateDay], *, deleted: bool) -> list[LateDay]:
        """Return the days whose rollups a change of points concerns. Those of deleted points may exist though nothing
        is complete, in copied tables for example, and a build writes no others over them."""
        return [day for day in days if deleted or day.day_s < self.limit_s]

    def complete_until_s(self, metric: bytes, interval: str) -> int:
        """Return a time such that the rollups of a metric that end before it are those of its stored points."""
        days = self._late.get(metric)
        until_s = self.complete_s.get(interval, 0)
        return min(until_s, *days[min(days)]) if days else until_s

    def late(self) -> dict[LateDay, dict[int, int]]:
        """Return the hours to build again by day, each with the number of its last change."""
        return {day: dict(hours) for day, hours in self._every().items() if day not in self._held}

    def _every(self) -> dict[LateDay, dict[int, int]]:
        """Return all late hours by day, each with the number of its last change."""
        return {LateDay(metric, day_s): hours for metric, days in self._late.items() for day_s, hours in days.items()}

    def hold(self, days: Iterable[LateDay]) -> None:
        """Do not build some days again until `release`: their points are about to change. So they stay late, in the
        file as well, and a change that ends half way leaves no wrong rollups."""
        self._held.update(days)

    def release(self, days: Iterable[LateDay]) -> None:
        """End a `hold`, and mark those days that have become complete meanwhile."""
        self._held.subtract(days)
        self._held += Counter()  # without zeros
        for day in self.concerned(days, deleted=False):
            self._mark(day, day.hours)

    def mark(self, late: LateHours, *, deleted: bool = False) -> bool:
        """Record that points of some hours came late, or of whole days were `deleted`. Return whether the file must be
        saved: also if that failed before."""
        before = self._late_hours, len(self._emptied)
        for day, hours in late.items():
            self._mark(day, hours)
            if deleted:
                self._emptied.add(day)
        self._added += (self._late_hours, len(self._emptied)) != before
        if self.late_days > MOST_LATE_DAYS:
            self.rewind(min(day_s for each in self._late.values() for day_s in each))
        return self._added != self._added_saved

    def _mark(self, day: LateDay, hours: Iterable[int]) -> None:
        self._changes += 1
        found = self._late.get(day.metric, {}).get(day.day_s, {})
        self._set(day, found | dict.fromkeys(hours, self._changes))

    def _set(self, day: LateDay, hours: dict[int, int]) -> None:
        """Set the late hours of a day; none: it is not late."""
        days = self._late.setdefault(day.metric, {})
        before = days.pop(day.day_s, {})
        self.late_days += bool(hours) - bool(before)
        self._late_hours += len(hours) - len(before)
        if hours:
            days[day.day_s] = hours
        elif not days:
            del self._late[day.metric]

    def is_emptied(self, day: LateDay) -> bool:
        """Return whether points of a late day were deleted, so that some of its rollups may have none any more."""
        return day in self._emptied

    def built(self, day: LateDay, changes: Mapping[int, int]) -> None:
        """Record that hours of a day were built again, each as of a change. They stay late if points came since."""
        found = self._late.get(day.metric, {}).get(day.day_s, {})
        left = dict(found.items() - changes.items())
        self._set(day, left)
        if not left:
            self._emptied.discard(day)

    def rewind(self, to_s: int) -> None:
        """Let nothing be complete after a time, which begins a day. Days after it are no longer listed, unless points
        of them were deleted."""
        self.complete_s = {name: min(until_s, to_s) for name, until_s in self.complete_s.items()}
        self.current = None
        self.rewinds += 1
        for day, changes in self.late().items():
            if day.day_s >= to_s and day not in self._emptied:
                self.built(day, changes)
