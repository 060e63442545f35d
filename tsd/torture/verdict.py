"""What is stored, point by point, against what was sent: what was lost, invented, doubled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tsd.torture.lines import Lines, Numbers, spelt
from tsd.torture.reading import StoredRow
from tsd.torture.senders import Sender

EXAMPLES = 20


@dataclass(frozen=True)
class Finding:
    """Points of which the same is to be said."""

    count: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, more: "Finding") -> "Finding":
        """Both together."""
        return Finding(self.count + more.count, (self.examples + more.examples)[:EXAMPLES])


NOTHING = Finding()


def finding(told: Iterable[str]) -> Finding:
    """Of all these."""
    every = list(told)
    return Finding(len(every), tuple(every[:EXAMPLES]))


class Verdict(NamedTuple):
    """What became of the lines of some clients."""

    stored: int = 0  # points
    replaced: int = 0  # lines whose time has the value of a later one
    lost: Finding = NOTHING
    invented: Finding = NOTHING
    doubled: Finding = NOTHING


class Account:
    """Compares rows with the lines of clients."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._senders = {(one.lines.place, f"c{one.lines.connection}"): one for one in senders}
        self._found = {key: np.zeros(one.sent, np.int64) for key, one in self._senders.items()}
        self._invented = NOTHING

    def take(self, row: StoredRow) -> None:
        """Enter one row's points."""
        key = row.series.metric.rsplit(".", 2)[0], dict(row.series.tags).get("connection", "")
        if key not in self._senders:
            self._strange(row, np.arange(len(row.times)))
            return
        sender = self._senders[key]
        numbers = sender.lines.numbers(row.series, row.times, row.values)
        known = (numbers >= 0) & (numbers < sender.sent)
        np.add.at(self._found[key], numbers[known], 1)
        if not known.all():
            self._strange(row, np.flatnonzero(~known))

    def _strange(self, row: StoredRow, places: Numbers) -> None:
        told = (
            f"{row.series.metric} {row.times[at]} {row.values[at]} {spelt(row.series.tags)}" for at in places[:EXAMPLES]
        )
        self._invented = self._invented.plus(Finding(len(places), tuple(told)))

    def verdict(self, owed: Sequence[Sender] | None = None) -> Verdict:
        """When all rows are entered: of all clients, or of those of which everything must be there by now."""
        total = Verdict(invented=self._invented)
        for key, sender in self._senders.items():
            if owed is not None and sender not in owed:
                continue
            one = _judged(sender.lines, self._found[key], sender)
            total = Verdict(
                total.stored + one.stored,
                total.replaced + one.replaced,
                total.lost.plus(one.lost),
                total.invented,
                total.doubled.plus(one.doubled),
            )
        return total


def _judged(lines: Lines, found: Numbers, sender: Sender) -> Verdict:
    acknowledged = sender.acknowledged()
    later = lines.later(np.arange(sender.sent))
    later = np.where(later < sender.sent, later, np.arange(sender.sent))
    hidden = later != np.arange(sender.sent)
    there = found > 0
    lost = acknowledged & ~there & ~there[later]
    twice = (found > 1) | (hidden & there & there[later])
    return Verdict(
        int(there.sum()),
        int((acknowledged & ~there & there[later]).sum()),
        _of(lines, lost),
        NOTHING,
        _of(lines, twice),
    )


def _of(lines: Lines, which: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Finding:
    numbers = np.flatnonzero(which)
    return Finding(len(numbers), tuple(_shown(lines, numbers[:EXAMPLES])))


def _shown(lines: Lines, numbers: Iterable[int]) -> Iterator[str]:
    return (lines.shown(int(n)) for n in numbers)
