"""Series: their texts as sent, their keys in ingest, and names. Names are ISO-8859-1.

A key has the table and the prefix of row keys, and after the time the field of columns.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tsd.codec.putline import illegal, split_tags
from tsd.codec.tall.rules import Place, TableRule, rule_of
from tsd.errors import CorruptRow
from tsd.tables.listed_catalog import Names
from tsd.tables.listed_resolver import ListedResolver
from tsd.tables.tall.encode import ColumnPlace, column_place
from tsd.tables.tall.index import ListedSeries, SeriesList
from tsd.tables.writing import SeriesKey, SeriesText

CACHED = 100_000  # series
END = b"\0"  # of a name


class PlacedSeries(NamedTuple):
    """A series with its rule."""

    rule: TableRule
    place: Place


class Target(NamedTuple):
    """Where the points of a series are put."""

    table: str
    place: ColumnPlace


def series_id(metric: str, tags: Mapping[str, str]) -> bytes:
    """Return what identifies a series to users.

    >>> series_id("m", {"b": "c", "a": "d"})
    b'm\\x00a=d\\x00b=c'
    """
    words = [metric, *(f"{name}={tags[name]}" for name in sorted(tags))]
    return END.join(word.encode("latin-1", "replace") for word in words)


def parse_series_id(series: bytes) -> Names:
    """Return metric and tags of a series. Raise CorruptRow.

    >>> parse_series_id(b"m\\x00a=d")
    Names(metric='m', tags={'a': 'd'})
    """
    metric, *words = series.decode("latin-1").split("\0")
    pairs = [word.partition("=") for word in words]
    if not metric or not all(name and value for name, _, value in pairs):
        raise CorruptRow(f"series: got {series!r}, wanted a metric and tags")
    return Names(metric, {name: value for name, _, value in pairs})


class Placing:
    """Keys and names of series by the rules."""

    def __init__(self, rules: Sequence[TableRule]) -> None:
        self.rules = rules
        self._tables = {rule.table.encode(): rule for rule in rules}
        self.names_of = lru_cache(CACHED)(self._names_of)
        self.target = lru_cache(CACHED)(self._target)

    def key_of(self, text: SeriesText) -> SeriesKey:
        """Return the key of a series. Raise BadLine."""
        metric = text.metric.decode("latin-1")
        tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in split_tags(text.tags)}
        rule = rule_of(self.rules, metric)
        if rule is None:
            raise illegal(f"metric {metric}: no rule of tsd.tall.tables applies to it")
        try:
            place = rule.place(metric, tags)
        except ValueError as exc:
            raise illegal(f"metric {metric}, table {rule.table}: {exc}") from exc
        return self.key_at(rule, place)

    def text_of(self, text: SeriesText) -> SeriesText:
        """Return the text of a series with the names that queries find it by. Raise BadLine."""
        metric, tags = self.names_of(self.key_of(text))
        words = [f"{name}={value}".encode("latin-1") for name, value in tags.items()]
        return SeriesText(metric.encode("latin-1"), b" ".join(words))

    def key_at(self, rule: TableRule, place: Place) -> SeriesKey:
        """Return the key of a place."""
        return SeriesKey(rule.table.encode() + END + place.prefix, place.field)

    def placed(self, key: SeriesKey) -> PlacedSeries:
        """Return rule and place of a key."""
        table, _, prefix = key.head.partition(END)
        return PlacedSeries(self._tables[table], Place(prefix, key.tail))

    def listed(self, key: SeriesKey) -> ListedSeries:
        """Return the entry of a series in the index. Raise CorruptRow."""
        return ListedSeries(*self.names_of(key), self.placed(key).place)

    def _target(self, key: SeriesKey) -> Target:
        """Return where the points of a key are put."""
        rule, place = self.placed(key)
        return Target(rule.table, column_place(rule, place))

    def _names_of(self, key: SeriesKey) -> Names:
        """Return the names of a key. Raise CorruptRow."""
        found = self.placed(key)
        return Names(*found.rule.names(found.place))


class TallResolver(ListedResolver):
    """Series texts → keys."""

    def __init__(self, index: SeriesList, placing: Placing, *, creates_metrics: bool) -> None:
        super().__init__(index.has_metric, creates_metrics=creates_metrics)
        self._index = index
        self._placing = placing

    def key_of(self, text: SeriesText) -> SeriesKey:
        """See ListedResolver."""
        return self._placing.key_of(text)

    async def list_series(self, keys: Sequence[SeriesKey]) -> None:
        """See ListedResolver."""
        await self._index.ensure(keys, self._placing.listed)
