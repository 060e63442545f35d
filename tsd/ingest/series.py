"""Series by number: texts → numbers → keys.

Every known text (a metric, and a line's tags as they were written) has a number; texts of one series share it. Numbers
are small and dense, so that a window of points can hold them in an array.

`HAS_LOOP` is true if the compiled parser was built. Without it the pure parser returns the same points and errors,
slower.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.kept_arrays import grown
from tsd.codec.putline import NameRules, check_series, split_tags
from tsd.codec.text import LEGAL, words_of
from tsd.errors import BadLine, bare
from tsd.tables.writing import KnownSeries, SeriesKey, SeriesKeys, SeriesText

try:
    from tsd.ingest import _parser
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

INITIAL_ROOM = 1024  # series
NONE = np.empty(0, np.int32)
MAX_LISTED = 300_000  # series in all lists of known series: each takes some 100 bytes


class Texts:
    """Map of series texts to numbers, and of numbers to first text and key. Compiled: `tsd.ingest._parser.Texts`."""

    def __init__(self) -> None:
        self.by_metric: dict[bytes, dict[bytes, int]] = {}  # read by the pure parser
        self._sets: dict[bytes, int] = {}  # metric and sorted tags → number
        self._first: list[SeriesText | None] = []  # None: the number is free
        self._keys: list[SeriesKey | None] = []
        self._free: list[int] = []
        self._metric_ids: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of known series."""
        return len(self._first) - len(self._free)

    @property
    def count(self) -> int:
        """Upper bound of all numbers ever assigned."""
        return len(self._first)

    def find(self, metric: bytes, tags: bytes) -> int:
        """Return the number of a text, or -1."""
        return self.by_metric.get(metric, {}).get(tags, -1)

    def find_set(self, metric: bytes, tags: bytes) -> int:
        """Return the number of a well-formed text's series, in whatever order its tags were inserted, or -1."""
        return self._sets.get(_set_of(metric, tags), -1)

    def add(self, metric: bytes, tags: bytes) -> int:
        """Assign a number to a text whose series has none."""
        number = self._free.pop() if self._free else len(self._first)
        if number == len(self._first):
            self._first.append(None)
            self._keys.append(None)
        self._first[number] = SeriesText(metric, tags)
        self._sets[_set_of(metric, tags)] = number
        self.link(metric, tags, number)
        return number

    def link(self, metric: bytes, tags: bytes, number: int) -> None:
        """Map an unknown text to a number."""
        self.by_metric.setdefault(metric, {})[tags] = number

    def unlink(self, metric: bytes, tags: bytes, number: int) -> None:
        """Remove a text from the map if it has this number."""
        texts = self.by_metric.get(metric, {})
        if texts.get(tags) == number:
            del texts[tags]
            if not texts:
                del self.by_metric[metric]
            if self._first[number] == (metric, tags):
                del self._sets[_set_of(metric, tags)]

    def unlink_all(self) -> None:
        """Remove all texts from the map. Numbers keep their texts and keys."""
        self.by_metric.clear()
        self._sets.clear()

    def text(self, number: int) -> SeriesText | None:
        """Return the first text of a number, or None if it is free."""
        return self._first[number]

    def numbers(self) -> list[int]:
        """Return the numbers that have a text, in order."""
        return [number for number, text in enumerate(self._first) if text is not None]

    def set_key(self, number: int, key: SeriesKey) -> None:
        """Set the key of a number."""
        self._keys[number] = key

    def key_of(self, number: int) -> SeriesKey | None:
        """Return the key of a number, or None if it has none."""
        return self._keys[number]

    def drop(self, number: int) -> None:
        """Free a number after all its texts were unlinked."""
        self._first[number] = self._keys[number] = None
        self._free.append(number)

    def metric_id(self, metric: bytes, *, enter: bool) -> int:
        """Return the permanent number of a metric, from 1 on. If it has none: 0, or with `enter` a new one."""
        if enter:
            return self._metric_ids.setdefault(metric, len(self._metric_ids) + 1)
        return self._metric_ids.get(metric, 0)


class _Listed(NamedTuple):
    """The series of a metric, as of the table's number of changes."""

    series: KnownSeries
    generations: NDArray[np.int64]
    changes: int
    late_keys: int


class SeriesTable:
    """Map of series texts to numbers and keys. All methods are synchronous.

    While the store does not answer, a series may be inserted without a key: it is *unresolved* until `set_key` or
    `refuse`.
    """

    def __init__(self, *, compiled: bool = HAS_LOOP) -> None:
        """`compiled`: for the compiled parser."""
        self.texts: Texts | _parser.Texts = _parser.Texts(SeriesText, SeriesKey) if compiled else Texts()
        self._aliases: dict[int, list[SeriesText]] = {}  # further texts, by number
        self._seen_s = np.zeros(INITIAL_ROOM, np.uint32)  # by number: time of its last points
        self._metric_of = np.zeros(INITIAL_ROOM, np.int32)  # by number: its metric's number
        self._generations = np.zeros(INITIAL_ROOM, np.int64)  # by number: how many series were inserted up to this one
        self._inserted = 0
        self._changes = 0  # of numbers and keys
        self._late_keys = 0  # keys that unresolved series got
        self._lists: OrderedDict[bytes, _Listed] = OrderedDict()  # by metric
        self._now_s = 0
        self._orphans: list[int] = []  # numbers without linked texts, whose points may still be in windows
        self.unresolved: dict[int, SeriesText] = {}
        self._unresolved_of: dict[bytes, set[int]] = {}  # by metric
        self.invalidations = 0  # calls of `invalidate`
        self.refused: set[int] = set()  # formerly unresolved numbers that cannot get a key: their points are refused

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def linked(self) -> int:
        """The number of series, without numbers that `invalidate` has unlinked: their series may have new ones."""
        return len(self) - len(self._orphans)

    def find(self, text: SeriesText) -> int | None:
        """Return the number of a known text."""
        number = self.texts.find(*text)
        return None if number < 0 else number

    def __contains__(self, text: SeriesText) -> bool:
        """Return whether the series of a well-formed text is known, in any order of its tags."""
        return self.texts.find_set(*text) >= 0

    def insert(self, text: SeriesText, key: SeriesKey | None) -> int:
        """Insert a well-formed text and return the number of its series. Without a key the series is unresolved."""
        number = self.texts.find(*text)
        if number < 0:
            number = self.texts.find_set(*text)
            if number < 0:
                number = self.texts.add(*text)
                self._make_room()
                self._inserted += 1
                self._changes += 1
                self._seen_s[number], self._generations[number] = self._now_s, self._inserted
                self._metric_of[number] = self.texts.metric_id(text.metric, enter=True)
            else:
                self.texts.link(*text, number)
                self._aliases.setdefault(number, []).append(text)
        if key is not None:
            self.set_key(number, key)
        elif self.texts.key_of(number) is None:
            self.unresolved[number] = text
            self._unresolved_of.setdefault(text.metric, set()).add(number)
        return number

    def insert_all(self, texts: Sequence[SeriesText], keys: SeriesKeys) -> None:
        """Insert well-formed texts with their keys, except those without a key."""
        left: Iterable[int] = range(len(texts))
        if not isinstance(self.texts, Texts):
            left = self.texts.insert_all(texts, keys.joined, keys.bounds)
            self.take_inserted()
            if not left:
                return
        all_keys = list(keys)
        for at in left:
            if any(all_keys[at]):
                self.insert(texts[at], all_keys[at])

    def take_inserted(self) -> None:
        """Complete series that the compiled code inserted."""
        if not isinstance(self.texts, Texts) and (fresh := self.texts.take_fresh()):
            numbers, metrics = np.frombuffer(fresh, np.int32).reshape(-1, 2).T
            self._make_room()
            self._seen_s[numbers] = self._now_s
            self._metric_of[numbers] = metrics
            self._generations[numbers] = np.arange(self._inserted + 1, self._inserted + 1 + len(numbers))
            self._inserted += len(numbers)
            self._changes += 1

    def _make_room(self) -> None:
        count = self.texts.count
        self._seen_s, self._generations = grown(self._seen_s, count), grown(self._generations, count)
        self._metric_of = grown(self._metric_of, count)

    def set_key(self, number: int, key: SeriesKey) -> None:
        """Set the key of a series."""
        self.texts.set_key(number, key)
        if self._settle(number):
            self._late_keys += 1
            self._changes += 1

    def refuse(self, number: int) -> None:
        """Mark an unresolved series as refused, because it cannot get a key. Its texts become unknown again."""
        self._settle(number)
        self.refused.add(number)
        self._unlink(number)

    def _settle(self, number: int) -> bool:
        """Return whether a series was unresolved, which it is not any more."""
        text = self.unresolved.pop(number, None)
        if text is None:
            return False
        others = self._unresolved_of[text.metric]
        others.discard(number)
        if not others:
            del self._unresolved_of[text.metric]
        return True

    def unresolved_of(self, metric: bytes) -> list[int]:
        """Return the unresolved series of a metric."""
        return list(self._unresolved_of.get(metric, ()))

    def key_of(self, number: int) -> SeriesKey | None:
        """Return the key of a series, or None while it is unresolved."""
        return self.texts.key_of(number)

    def keys(self, numbers: NDArray[np.int32]) -> SeriesKeys:
        """Return the keys of series, see `SeriesLookup`."""
        if isinstance(self.texts, Texts):
            return SeriesKeys.of(map(self.texts.key_of, numbers.tolist()))
        bounds = np.empty(2 * len(numbers) + 1, np.int64)
        return SeriesKeys(self.texts.join_keys(numbers, bounds), bounds)

    def text(self, number: int) -> SeriesText | None:
        """Return the first text of a series."""
        return self.texts.text(number)

    def merge_numbers(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Replace numbers with equal keys by the first of them. After `invalidate` a series may have two numbers."""
        first: dict[SeriesKey, int] = {}
        same = np.arange(self.texts.count, dtype=np.int32)
        for number in np.unique(numbers).tolist():
            key = self.texts.key_of(number)
            if key is not None:
                same[number] = first.setdefault(key, number)
        return same[numbers]

    def generations(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a positive generation for each number, 0 for a free one. It changes when the number is reused."""
        return self._generations[numbers]

    def has_metric(self, metric: bytes, numbers: NDArray[np.int32]) -> bool:
        """Return whether one of these series is of the metric."""
        return bool(self.of_metric(metric, numbers).any())

    def metric_number(self, metric: bytes) -> int:
        """Return the number of a metric; 0 if it never had series."""
        return self.texts.metric_id(metric, enter=False)

    def metric_numbers(self) -> NDArray[np.int32]:
        """Return the number of the metric of each series, by the number of the series."""
        return self._metric_of

    def of_metric(self, metric: bytes, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each of these series is of the metric."""
        wanted = self.metric_number(metric)
        return self._metric_of[numbers] == wanted if wanted else np.zeros(len(numbers), np.bool_)

    def known_series(self, metric: bytes) -> KnownSeries | None:
        """Return the series of a metric: the same object as before while they do not change. None if they are too many
        to be listed."""
        listed = self._lists.pop(metric, None)
        if listed is not None and listed.changes == self._changes:
            self._lists[metric] = listed
            return listed.series
        listed = self._list(metric, listed)
        if listed is None:
            return None
        self._lists[metric] = listed
        while sum(len(one.series) for one in self._lists.values()) > MAX_LISTED:
            self._lists.popitem(last=False)
        return listed.series

    def _list(self, metric: bytes, before: _Listed | None) -> _Listed | None:
        wanted = self.metric_number(metric)
        numbers = np.flatnonzero(self._metric_of[: self.texts.count] == wanted).astype(np.int32) if wanted else NONE
        if len(numbers) > MAX_LISTED:
            return None
        generations = self._generations[numbers]
        if (
            before is not None
            and before.late_keys == self._late_keys
            and np.array_equal(before.series.numbers, numbers)
            and np.array_equal(before.generations, generations)
        ):
            return before._replace(changes=self._changes)
        return _Listed(KnownSeries(numbers, self.keys(numbers)), generations, self._changes, self._late_keys)

    def mark_seen(self, numbers: NDArray[np.int32], now_s: int) -> None:
        """Record that these series have points now."""
        self._now_s = now_s
        self._seen_s[numbers] = now_s

    def evict(self, before_s: int, *, held_since_s: int) -> int:
        """Evict series without points since `before_s` and return how many.

        Their numbers are reused, so waiting windows must not have points of them. Series seen since `held_since_s`,
        when the oldest waiting window was sealed, are therefore kept.
        """
        seen_s = self._seen_s[: self.texts.count]
        idle = np.flatnonzero(seen_s < min(before_s, held_since_s)).tolist()
        orphans, self._orphans = self._orphans, []
        for number in orphans:
            (idle if seen_s[number] < held_since_s else self._orphans).append(number)
        text = self.texts.text
        evicted = [n for n in dict.fromkeys(idle) if text(n) is not None and n not in self.unresolved]
        for number in evicted:
            self._unlink(number)
            self.texts.drop(number)
            self.refused.discard(number)
        self._generations[evicted] = 0
        self._changes += bool(evicted)
        return len(evicted)

    def invalidate(self) -> None:
        """Unlink every text, because names may have other ids now. A series gets a new number with its next line.

        Numbers in use are kept. An open window, or one that is read again, may then have points of one series under two
        numbers. `merge_numbers` merges them, because the order of their points matters.
        """
        self.invalidations += 1
        self.texts.unlink_all()
        self._aliases.clear()
        self._orphans = self.texts.numbers()

    def _unlink(self, number: int) -> None:
        """Unlink the texts of a series, except texts that have another number by now."""
        first = self.texts.text(number)
        for text in [first, *self._aliases.pop(number, [])] if first else []:
            self.texts.unlink(*text, number)


class Validator:
    """Checks whether unknown texts are well-formed series."""

    def __init__(self, rules: NameRules, *, compiled: bool = HAS_LOOP) -> None:
        self.rules = rules
        self._compiled = _parser.Rules(LEGAL + rules.extra, rules.max_tags) if compiled else None

    def suspects(self, texts: Sequence[SeriesText]) -> Sequence[SeriesText]:
        """Return the texts that need `check`: only malformed ones, or all texts if there is no compiled code."""
        return texts if self._compiled is None else self._compiled.malformed(texts)

    def check(self, text: SeriesText) -> BadLine | None:
        """Return the error of a text, None if it is a well-formed series."""
        try:
            check_series(text.metric, split_tags(text.tags), self.rules)
        except BadLine as error:
            return bare(error)
        return None


def _set_of(metric: bytes, tags: bytes) -> bytes:
    """Return a canonical text of a series, with its tags sorted."""
    return metric + b" " + b" ".join(sorted(dict.fromkeys(words_of(tags))))
