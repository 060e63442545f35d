"""Series of Heroic's table: their texts as sent, keys in ingest, and names.

Texts are ISO-8859-1, Heroic's names Unicode. Some tags are a *resource*: they follow the time in a row key. To users
they are tags as all others.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tsd.codec.heroic.keys import (
    BASE_BYTES,
    LONGEST_HEROIC_KEY,
    Pairs,
    ordered,
    parse_head,
    parse_tail,
    series_head,
    series_tail,
)
from tsd.codec.putline import illegal, split_tags
from tsd.tables.heroic.index import SeriesList
from tsd.tables.listed_catalog import Names
from tsd.tables.listed_resolver import ListedResolver
from tsd.tables.writing import SeriesKey, SeriesText

CACHED = 100_000  # series
RESOURCE = "resource."  # before the name of a resource's entry, if a tag has the same name


def key_of(text: SeriesText, resource_tags: frozenset[str]) -> SeriesKey:
    """Return the key of a series. Raise BadLine.

    >>> key_of(SeriesText(b"m", b"a=b pod=c"), frozenset(["pod"]))
    SeriesKey(head=b'\\x01\\x01m\\x01\\x01\\x01a\\x01\\x01b', tail=b'\\x01\\x00\\x07\\x01\\x03pod\\x01c')
    """
    tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in split_tags(text.tags)}
    resource = {name: tags.pop(name) for name in resource_tags & tags.keys()}
    key = SeriesKey(series_head(text.metric.decode("latin-1"), ordered(tags)), series_tail(ordered(resource)))
    size = len(key.head) + BASE_BYTES + len(key.tail)
    if size > LONGEST_HEROIC_KEY:
        raise illegal(f"metric and tags: got {size} bytes of a row key, wanted up to {LONGEST_HEROIC_KEY}")
    return key


@lru_cache(CACHED)
def names_of(key: SeriesKey) -> Names:
    """Return the names of a series. Raise CorruptRow.

    >>> names_of(key_of(SeriesText(b"m", b"a=b pod=c"), frozenset(["pod"])))
    Names(metric='m', tags={'a': 'b', 'pod': 'c'})
    """
    metric, tags, _ = parse_head(key.head)
    return Names(metric, merged(tags, parse_tail(key.tail)))


def merged(tags: Pairs, resource: Pairs) -> dict[str, str]:
    """Return tags, and the entries of a resource as tags.

    >>> merged((("a", "b"),), (("a", "c"), ("d", "e")))
    {'a': 'b', 'resource.a': 'c', 'd': 'e'}
    """
    found = dict(tags)
    for name, value in resource:
        while name in found:
            name = RESOURCE + name  # noqa: PLW2901 - until no tag has it
        found[name] = value
    return found


def series_id(metric: str, tags: Mapping[str, str]) -> bytes:
    """Return what identifies a series to users: the start of a row key with all of its tags."""
    return series_head(metric, ordered(tags))


def parse_series_id(series: bytes) -> Names:
    """Return metric and tags of a series. Raise CorruptRow."""
    metric, tags, _ = parse_head(series)
    return Names(metric, dict(tags))


class HeroicResolver(ListedResolver):
    """Series texts → keys."""

    def __init__(self, index: SeriesList, resource_tags: frozenset[str], *, creates_metrics: bool) -> None:
        super().__init__(index.has_metric, creates_metrics=creates_metrics)
        self._index = index
        self._resource_tags = resource_tags

    def key_of(self, text: SeriesText) -> SeriesKey:
        """See ListedResolver."""
        return key_of(text, self._resource_tags)

    async def list_series(self, keys: Sequence[SeriesKey]) -> None:
        """List their names. The series are listed when their first points are written."""
        await self._index.list_names(keys)
