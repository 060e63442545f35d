"""Which series a text names, and what its row keys are made of.

Every known text (a metric, and a line's tags as they were written) has a number; texts that name one series share it.
The numbers are small and dense, so that a window of points can hold them in an array.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.putline import Tags
from tsd.ingest import compiled


class SeriesText(NamedTuple):
    """How a line names its series."""

    metric: bytes
    tags: bytes  # the words after the value, blanks and all


class KeyParts(NamedTuple):
    """A row key of a series is `before`, the base time, `after`."""

    before: bytes  # salt and metric UID
    after: bytes  # tag pairs


class Texts:
    """Series texts → numbers; numbers → their first text and their key parts. In C: `tsd.ingest._rows.Texts`."""

    def __init__(self) -> None:
        self.by_metric: dict[bytes, dict[bytes, int]] = {}  # read by the plain way in itself
        self._first: list[SeriesText | None] = []  # None: the number is free
        self._parts: list[KeyParts | None] = []

    def find(self, metric: bytes, tags: bytes) -> int:
        """The number a text leads to, -1 for none."""
        return self.by_metric.get(metric, {}).get(tags, -1)

    def link(self, metric: bytes, tags: bytes, number: int, first: bool) -> None:
        """Have a text, which leads to none, lead to a number; `first`: the number, which is free, shows it."""
        if first:
            if number >= len(self._first):
                self._first.extend([None] * (number + 1 - len(self._first)))
                self._parts.extend([None] * (number + 1 - len(self._parts)))
            self._first[number] = SeriesText(metric, tags)
        self.by_metric.setdefault(metric, {})[tags] = number

    def unlink(self, metric: bytes, tags: bytes, number: int) -> None:
        """Have a text lead nowhere, if it leads to this number."""
        texts = self.by_metric.get(metric, {})
        if texts.get(tags) == number:
            del texts[tags]
            if not texts:
                del self.by_metric[metric]

    def unlink_all(self) -> None:
        """Have every text lead nowhere; numbers keep what they have."""
        self.by_metric.clear()

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

    def drop(self, number: int) -> None:
        """Free a number; its texts were unlinked before."""
        self._first[number] = self._parts[number] = None


class SeriesTable:
    """Texts → numbers → key parts. Owned by one task at a time: nothing here waits.

    A series may be entered before its UIDs are known (the store is away); `settle` completes it, `refuse` ends it.
    """

    def __init__(self, *, by_loop: bool = compiled.HAS) -> None:
        """`by_loop`: for the compiled way in."""
        self.texts: Texts | compiled.Texts = compiled.Texts(SeriesText, KeyParts) if by_loop else Texts()
        self._count = 0  # numbers ever given
        self._aliases: dict[int, list[SeriesText]] = {}
        self._first_texts: dict[bytes, bytes] = {}  # sorted tags → the text they were first seen in
        self._seen = np.zeros(1024, np.uint32)
        self._metric_numbers: dict[bytes, int] = {}  # of every metric ever entered, from 1
        self._metric_of = np.zeros(1024, np.int32)  # by series
        self._births = np.zeros(1024, np.int64)  # by number: which series it was given to, counted
        self._born = 0
        self._now_s = 0
        self._orphans: list[int] = []  # no text leads to them any more; windows may still hold their points
        self._free: list[int] = []
        self.unsettled: dict[int, SeriesText] = {}
        self.refused: set[int] = set()  # were entered, and may have no UIDs: their points cannot be stored

    def __len__(self) -> int:
        return self._count - len(self._free)

    @property
    def tag_texts(self) -> int:
        """Tag sets whose first text is remembered."""
        return len(self._first_texts)

    def find(self, text: SeriesText) -> int | None:
        """The number of a known text."""
        number = self.texts.find(*text)
        return None if number < 0 else number

    def knows(self, metric: bytes, tags: Tags) -> bool:
        """Whether a series is known, in whatever order its tags were sent."""
        first = self._first_texts.get(_in_one_order(tags))
        return first is not None and self.texts.find(metric, first) >= 0

    def enter(self, text: SeriesText, tags: Tags, parts: KeyParts | None) -> int:
        """Make `text` known; `parts` None where UIDs are still to come. The number of its series."""
        number = self.texts.find(*text)
        if number < 0:
            # All texts of one tag set lead to the one it was first seen in, under every metric.
            first = self._first_texts.setdefault(_in_one_order(tags), text.tags)
            number = self.texts.find(text.metric, first)
            if number < 0:
                number = self._new(text.metric, first)
            if text.tags != first:
                self.texts.link(*text, number, False)
                self._aliases.setdefault(number, []).append(text)
        if parts is not None:
            self.settle(number, parts)
        elif self.texts.parts(number) is None:
            self.unsettled[number] = text
        return number

    def _new(self, metric: bytes, first: bytes) -> int:
        number = self._free[-1] if self._free else self._count
        if number == len(self._seen):
            self._seen = np.concatenate((self._seen, np.zeros_like(self._seen)))
            self._births = np.concatenate((self._births, np.zeros_like(self._births)))
            self._metric_of = np.concatenate((self._metric_of, np.zeros_like(self._metric_of)))
        self.texts.link(metric, first, number, True)
        if self._free:
            self._free.pop()
        else:
            self._count += 1
        self._seen[number] = self._now_s
        self._metric_of[number] = self._metric_numbers.setdefault(metric, len(self._metric_numbers) + 1)
        self._born += 1
        self._births[number] = self._born
        return number

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

    def text(self, number: int) -> SeriesText | None:
        """The first text seen of a series."""
        return self.texts.text(number)

    def births(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """For each number one that changes when it is given to another series; never 0."""
        return self._births[numbers]

    def any_of(self, metric: bytes, numbers: NDArray[np.int32]) -> bool:
        """Whether one of these series is of that metric."""
        wanted = self._metric_numbers.get(metric)
        return wanted is not None and bool((self._metric_of[numbers] == wanted).any())

    def touch(self, numbers: NDArray[np.int32], now_s: int) -> None:
        """These series sent something."""
        self._now_s = now_s
        self._seen[numbers] = now_s

    def forget(self, before_s: int, *, held_since_s: int) -> int:
        """Forget series that sent nothing since `before_s`; how many.

        Their numbers will be used again, so no window that is still to be encoded may hold points of them: what was
        seen since `held_since_s` stays, which is when the oldest of those windows was sealed and touched.
        """
        seen = self._seen[: self._count]
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
        self._free.extend(gone)
        self._drop_tag_texts(len(gone))
        return len(gone)

    def forget_texts(self) -> None:
        """Look every series up again when it next comes (names may have changed their UIDs), under a new number.

        Numbers in use stay. No window may be open: it would have points of one series under two numbers, and nobody
        could tell which came later.
        """
        self.texts.unlink_all()
        self._aliases.clear()
        self._first_texts.clear()
        self._orphans = self.texts.numbers()

    def _unlink(self, number: int) -> None:
        """Take a series' texts away, unless they name another by now."""
        first = self.texts.text(number)
        for text in [first, *self._aliases.pop(number, [])] if first else []:
            self.texts.unlink(*text, number)

    def _drop_tag_texts(self, forgotten: int) -> None:
        """Rebuild the table of first texts once most of it may be of no use: it holds no count of users."""
        if forgotten and len(self._first_texts) > 2 * len(self) + 1000:
            used = {text.tags for number in self.texts.numbers() if (text := self.texts.text(number)) is not None}
            self._first_texts = {key: first for key, first in self._first_texts.items() if first in used}


def _in_one_order(tags: Tags) -> bytes:
    """A tag set as one text, whatever the order of its tags."""
    return b" ".join(b"=".join(pair) for pair in sorted(tags))
