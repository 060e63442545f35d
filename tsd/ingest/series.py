"""Which series a text names, and what its row keys are made of.

Every known text (a metric, and a line's tags as they were written) has a number; texts that name one series share it.
The numbers are small and dense, so that a window of points can hold them in an array.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.words import words_of
from tsd.ingest import compiled


class SeriesText(NamedTuple):
    """How a line names its series."""

    metric: bytes
    tags: bytes  # the words after the value, blanks and all


class KeyParts(NamedTuple):
    """A row key of a series is `before`, the base time, `after`."""

    before: bytes  # salt and metric UID
    after: bytes  # tag pairs


class TagsOf(NamedTuple):
    """Some series of one metric."""

    numbers: list[int]
    pairs: list[bytes]  # joined, of each


class Texts:
    """Series texts → numbers; numbers → their first text and their key parts. In C: `tsd.ingest._rows.Texts`."""

    def __init__(self) -> None:
        self.by_metric: dict[bytes, dict[bytes, int]] = {}  # read by the plain way in itself
        self._sets: dict[bytes, int] = {}  # metric and sorted tags → number
        self._first: list[SeriesText | None] = []  # None: the number is free
        self._parts: list[KeyParts | None] = []
        self._free: list[int] = []
        self._metric_ids: dict[bytes, int] = {}

    def __len__(self) -> int:
        """How many numbers have a text."""
        return len(self._first) - len(self._free)

    @property
    def count(self) -> int:
        """Numbers ever given: all are below."""
        return len(self._first)

    def find(self, metric: bytes, tags: bytes) -> int:
        """The number a text leads to, -1 for none."""
        return self.by_metric.get(metric, {}).get(tags, -1)

    def find_set(self, metric: bytes, tags: bytes) -> int:
        """The number of the series that a well-formed text names, however the text is written that leads to it; -1 for
        none."""
        return self._sets.get(_set_of(metric, tags), -1)

    def add(self, metric: bytes, tags: bytes) -> int:
        """A number for a text that leads to none, nor does another of its tags."""
        number = self._free.pop() if self._free else len(self._first)
        if number == len(self._first):
            self._first.append(None)
            self._parts.append(None)
        self._first[number] = SeriesText(metric, tags)
        self._sets[_set_of(metric, tags)] = number
        self.link(metric, tags, number)
        return number

    def link(self, metric: bytes, tags: bytes, number: int) -> None:
        """Have a text, which leads to none, lead to a number."""
        self.by_metric.setdefault(metric, {})[tags] = number

    def unlink(self, metric: bytes, tags: bytes, number: int) -> None:
        """Have a text lead nowhere, if it leads to this number."""
        texts = self.by_metric.get(metric, {})
        if texts.get(tags) == number:
            del texts[tags]
            if not texts:
                del self.by_metric[metric]
            if self._first[number] == (metric, tags):
                del self._sets[_set_of(metric, tags)]

    def unlink_all(self) -> None:
        """Have every text lead nowhere; numbers keep what they have."""
        self.by_metric.clear()
        self._sets.clear()

    def text(self, number: int) -> SeriesText | None:
        """The first text of a number; None where it is free."""
        return self._first[number]

    def numbers(self) -> list[int]:
        """The numbers that have a text, in order."""
        return [number for number, text in enumerate(self._first) if text is not None]

    def settle(self, number: int, parts: KeyParts) -> None:
        """Give a number key parts."""
        self._parts[number] = parts

    def parts(self, number: int) -> KeyParts | None:
        """Its key parts; None where it has none."""
        return self._parts[number]

    def tags_of(self, numbers: NDArray[np.int32], ahead: int) -> "dict[bytes, TagsOf]":
        """Of those series that have key parts, by metric UID, the numbers and joined tag pairs; `ahead` bytes of salt
        stand before a metric's UID."""
        found: dict[bytes, TagsOf] = {}
        for number in numbers.tolist():
            parts = self._parts[number]
            if parts is not None:
                some = found.setdefault(parts.before[ahead:], TagsOf([], []))
                some.numbers.append(number)
                some.pairs.append(parts.after)
        return found

    def drop(self, number: int) -> None:
        """Free a number; its texts were unlinked before."""
        self._first[number] = self._parts[number] = None
        self._free.append(number)

    def metric_id(self, metric: bytes, *, enter: bool) -> int:
        """The number of a metric, from 1 on, which it keeps; of one that has none 0, unless it is to be entered."""
        if enter:
            return self._metric_ids.setdefault(metric, len(self._metric_ids) + 1)
        return self._metric_ids.get(metric, 0)


class SeriesTable:
    """Texts → numbers → key parts. Owned by one task at a time: nothing here waits.

    A series may be entered before its UIDs are known (the store is away); `settle` completes it, `refuse` ends it.
    """

    def __init__(self, *, by_loop: bool = compiled.HAS) -> None:
        """`by_loop`: for the compiled way in."""
        self.texts: Texts | compiled.Texts = compiled.Texts(SeriesText, KeyParts, TagsOf) if by_loop else Texts()
        self._aliases: dict[int, list[SeriesText]] = {}
        self._seen = np.zeros(1024, np.uint32)
        self._metric_of = np.zeros(1024, np.int32)  # by series: its metric's number
        self._births = np.zeros(1024, np.int64)  # by number: which series it was given to, counted
        self._born = 0
        self._now_s = 0
        self._orphans: list[int] = []  # no text leads to them any more; windows may still hold their points
        self.unsettled: dict[int, SeriesText] = {}
        self.forgotten = 0  # how often all texts were
        self.refused: set[int] = set()  # were entered, and may have no UIDs: their points cannot be stored

    def __len__(self) -> int:
        return len(self.texts)

    def find(self, text: SeriesText) -> int | None:
        """The number of a known text."""
        number = self.texts.find(*text)
        return None if number < 0 else number

    def knows(self, text: SeriesText) -> bool:
        """Whether the series of a well-formed text is known, in whatever order its tags were sent."""
        return self.texts.find_set(*text) >= 0

    def enter(self, text: SeriesText, parts: KeyParts | None) -> int:
        """Make a well-formed text known; `parts` None where UIDs are still to come. The number of its series."""
        number = self.texts.find(*text)
        if number < 0:
            number = self.texts.find_set(*text)
            if number < 0:
                number = self.texts.add(*text)
                self._begin(number, self.texts.metric_id(text.metric, enter=True))
            else:
                self.texts.link(*text, number)
                self._aliases.setdefault(number, []).append(text)
        if parts is not None:
            self.settle(number, parts)
        elif self.texts.parts(number) is None:
            self.unsettled[number] = text
        return number

    def admit(self) -> None:
        """Take note of series that the compiled loop over lines entered."""
        if isinstance(self.texts, Texts):
            return
        if fresh := self.texts.take_fresh():
            numbers, metrics = np.frombuffer(fresh, np.int32).reshape(-1, 2).T
            self._make_room()
            self._seen[numbers] = self._now_s
            self._metric_of[numbers] = metrics
            self._births[numbers] = np.arange(self._born + 1, self._born + 1 + len(numbers))
            self._born += len(numbers)

    def _begin(self, number: int, metric_id: int) -> None:
        """Take note of one."""
        self._make_room()
        self._seen[number] = self._now_s
        self._metric_of[number] = metric_id
        self._born += 1
        self._births[number] = self._born

    def _make_room(self) -> None:
        if self.texts.count > (size := len(self._seen)):
            more = max(2 * size, self.texts.count)
            seen, births, metric_of = self._seen, self._births, self._metric_of
            # Zeros take no memory before they are written to.
            self._seen, self._births = np.zeros(more, np.uint32), np.zeros(more, np.int64)
            self._metric_of = np.zeros(more, np.int32)
            self._seen[:size], self._births[:size], self._metric_of[:size] = seen, births, metric_of

    def settle(self, number: int, parts: KeyParts) -> None:
        """The UIDs of a series are known."""
        self.texts.settle(number, parts)
        self.unsettled.pop(number, None)

    def refuse(self, number: int) -> None:
        """A series entered without UIDs can have none; its texts are strangers again."""
        self.unsettled.pop(number, None)
        self.refused.add(number)
        self._unlink(number)

    def parts(self, number: int) -> KeyParts | None:
        """What row keys of a series are made of; None while its UIDs are not known."""
        return self.texts.parts(number)

    def tags_of(self, numbers: NDArray[np.int32], salt_width: int) -> dict[bytes, TagsOf]:
        """The tag pairs of those series whose UIDs are known, by metric UID."""
        return self.texts.tags_of(numbers, salt_width)

    def text(self, number: int) -> SeriesText | None:
        """The first text seen of a series."""
        return self.texts.text(number)

    def as_one(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """These numbers, settled ones, but one for each series: its texts may have been forgotten on the way."""
        first: dict[KeyParts, int] = {}
        same = np.arange(self.texts.count, dtype=np.int32)
        for number in np.unique(numbers).tolist():
            parts = self.texts.parts(number)
            if parts is not None:
                same[number] = first.setdefault(parts, number)
        return same[numbers]

    def births(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """For each number one that changes when it is given to another series; never 0."""
        return self._births[numbers]

    def any_of(self, metric: bytes, numbers: NDArray[np.int32]) -> bool:
        """Whether one of these series is of that metric."""
        wanted = self.texts.metric_id(metric, enter=False)
        return wanted != 0 and bool((self._metric_of[numbers] == wanted).any())

    def touch(self, numbers: NDArray[np.int32], now_s: int) -> None:
        """These series sent something."""
        self._now_s = now_s
        self._seen[numbers] = now_s

    def forget(self, before_s: int, *, held_since_s: int) -> int:
        """Forget series that sent nothing since `before_s`; how many.

        Their numbers will be used again, so no window that is still to be encoded may hold points of them: what was
        seen since `held_since_s` stays, which is when the oldest of those windows was sealed and touched.
        """
        seen = self._seen[: self.texts.count]
        idle = np.flatnonzero(seen < min(before_s, held_since_s)).tolist()
        orphans, self._orphans = self._orphans, []
        for number in orphans:
            (idle if seen[number] < held_since_s else self._orphans).append(number)
        text = self.texts.text
        gone = [n for n in dict.fromkeys(idle) if text(n) is not None and n not in self.unsettled]
        for number in gone:
            self._unlink(number)
            self.texts.drop(number)
            self.refused.discard(number)
        return len(gone)

    def forget_texts(self) -> None:
        """Look every series up again when it next comes (names may have changed their UIDs), under a new number.

        Numbers in use stay. A window that is open, or read again, meanwhile has points of one series under two numbers,
        and nobody could tell which came later: see `as_one`.
        """
        self.forgotten += 1
        self.texts.unlink_all()
        self._aliases.clear()
        self._orphans = self.texts.numbers()

    def _unlink(self, number: int) -> None:
        """Take a series' texts away, unless they name another by now."""
        first = self.texts.text(number)
        for text in [first, *self._aliases.pop(number, [])] if first else []:
            self.texts.unlink(*text, number)


def _set_of(metric: bytes, tags: bytes) -> bytes:
    """A series as one text, whatever the order of its tags."""
    return metric + b" " + b" ".join(sorted(dict.fromkeys(words_of(tags))))
