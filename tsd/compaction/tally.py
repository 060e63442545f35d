"""What compactions did: counters, and their sum in words."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tsd.codec.cell import COLUMN
from tsd.codec.merge import DuplicateTimestamp, StoredCell
from tsd.errors import CorruptRow

TIME_BYTES = 8  # what a store keeps with each cell


class Change(Protocol):
    """A row that was compacted."""

    @property
    def before(self) -> tuple[int, int]:
        """Its cells and their bytes, as it was read."""
        ...

    @property
    def after(self) -> tuple[int, int]:
        """The same as it is left."""
        ...

    @property
    def identical(self) -> int:
        """Points dropped that said the same as the one that was kept."""
        ...

    @property
    def variant(self) -> int:
        """Points dropped that said something else."""
        ...


@dataclass
class Tally:
    """Counters since the start. Cells and bytes are those of all rows that were looked at; a row that is left as it is
    counts the same before and after."""

    rows: int = 0  # looked at
    compacted: int = 0  # rows
    cells_before: int = 0
    cells_after: int = 0
    bytes_before: int = 0  # of row keys, columns, values and times, as every cell has them, not compressed
    bytes_after: int = 0
    identical: int = 0  # points dropped that said the same as the one that was kept
    variant: int = 0  # points dropped that said something else
    writes: int = 0  # cells
    deletes: int = 0  # cells
    corrupt: int = 0  # rows that cannot be read
    undecided: int = 0  # rows with duplicates that differ, where the rules do not decide
    hidden: int = 0  # rows whose merged cell did not show: left as they were
    young: int = 0  # rows that a pass left, because they were written to all the time
    errors: Counter[str] = field(default_factory=Counter)  # of the store, by what was asked: read, put, delete

    def see(self, before: tuple[int, int]) -> None:
        """Count a row that is looked at, for now as one that is left as it is."""
        self.rows += 1
        self.cells_before += before[0]
        self.cells_after += before[0]
        self.bytes_before += before[1]
        self.bytes_after += before[1]

    def count(self, change: Change) -> None:
        """Count a row that was compacted, after `see`."""
        self.compacted += 1
        self.cells_after += change.after[0] - change.before[0]
        self.bytes_after += change.after[1] - change.before[1]
        self.identical += change.identical
        self.variant += change.variant

    def refuse(self, error: CorruptRow) -> None:
        """Count a row that cannot be compacted."""
        if isinstance(error, DuplicateTimestamp):
            self.undecided += 1
        else:
            self.corrupt += 1


def in_words(tally: Tally) -> list[str]:
    """The sum of a pass, line by line.

    >>> in_words(Tally(rows=3, compacted=2, cells_before=7, cells_after=4, bytes_before=188, bytes_after=117))[:2]
    ['rows: 3, compacted 2', 'cells: 7 before, 4 after']
    """
    told = [
        f"rows: {tally.rows}, compacted {tally.compacted}",
        f"cells: {tally.cells_before} before, {tally.cells_after} after",
        f"bytes: {tally.bytes_before} before, {tally.bytes_after} after, not compressed",
        f"duplicates dropped: {tally.identical} that said the same, {tally.variant} older ones that did not",
    ]
    left = {
        "cannot be read": tally.corrupt,
        "hold duplicates that differ (tsd.storage.fix_duplicates is false)": tally.undecided,
        "are hidden by what was deleted, until HBase's major compaction": tally.hidden,
        "are being written to": tally.young,
    }
    return told + [f"rows left that {why}: {count}" for why, count in left.items() if count]


def size_of(key: bytes, cells: Iterable[StoredCell]) -> tuple[int, int]:
    """How many cells, and the bytes of each with its row's key, its column and its time.

    >>> size_of(bytes(13), [StoredCell(b"\\0\\0", b"\\x2a", 5)])
    (1, 26)
    """
    sizes = [len(cell.qualifier) + len(cell.value) for cell in cells]
    return len(sizes), sum(sizes) + len(sizes) * (len(key) + len(COLUMN) + TIME_BYTES)
