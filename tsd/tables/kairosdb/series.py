"""Series of KairosDB's tables: their texts as sent, keys in ingest, and names.

Texts are ISO-8859-1, KairosDB's names Unicode. The tag `kairos_opt.ttl` is no tag: it is the time to live of the points
in seconds, as in KairosDB's telnet lines. It is a part of the key, so a series has a key for each time to live.
"""

from collections.abc import Mapping, Sequence

from tsd.codec.kairosdb.keys import DOUBLE, LONGEST_PARTITION_KEY, STRING, DataRow, encode_tags, parse_tags
from tsd.codec.putline import illegal, split_tags
from tsd.tables.kairosdb.tables import LAST_EXPIRY_S, KairosTables
from tsd.tables.listed_resolver import ListedResolver
from tsd.tables.writing import SeriesKey, SeriesText

TTL_TAG = b"kairos_opt.ttl"
TTL_BYTES = 4
LONGEST_TTL_S = 630_720_000  # of Cassandra: 20 years
DEFAULT_TAGS = {"add": "tag"}  # of a series without tags, as in KairosDB


def key_of(text: SeriesText, now_s: int) -> SeriesKey:
    """Return the key of a series: its metric; its time to live and tags. Raise BadLine.

    >>> key_of(SeriesText(b"m", b"host=a kairos_opt.ttl=60"), 0)
    SeriesKey(head=b'm', tail=b'\\x00\\x00\\x00<host=a:')
    """
    tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in split_tags(text.tags)}
    ttl = tags.pop(TTL_TAG.decode(), "0")
    if not (ttl.isascii() and ttl.isdigit() and int(ttl) <= LONGEST_TTL_S):
        raise illegal(f"{TTL_TAG.decode()}: got {ttl}, wanted 0 to {LONGEST_TTL_S} seconds")
    if int(ttl) and now_s + int(ttl) > LAST_EXPIRY_S:
        raise illegal(f"{TTL_TAG.decode()}: got {ttl}: points would expire after 2038, which Cassandra cannot store")
    metric = text.metric.decode("latin-1")
    suffix = encode_tags(tags or DEFAULT_TAGS)
    size = len(DataRow(metric, 0, max(DOUBLE, STRING, key=len), suffix).encode())
    if size > LONGEST_PARTITION_KEY:
        raise illegal(f"metric and tags: got {size} bytes of a row key, wanted up to {LONGEST_PARTITION_KEY}")
    return SeriesKey(metric.encode(), int(ttl).to_bytes(TTL_BYTES, "big") + suffix)


def ttl_of(key: SeriesKey) -> int:
    """Return the time to live of a series' points in seconds, 0 if they live forever."""
    return int.from_bytes(key.tail[:TTL_BYTES], "big")


def series_id(metric: str, tags: bytes) -> bytes:
    """Return what identifies a series to users.

    >>> series_id("m", b"host=a:")
    b'm\\x00host=a:'
    """
    return metric.encode("utf-8", "surrogatepass") + b"\0" + tags


def names_id(metric: str, tags: Mapping[str, str]) -> bytes:
    """Return what identifies a series to users, from its names."""
    return series_id(metric, encode_tags(tags))


def parse_series_id(series: bytes) -> tuple[str, dict[str, str]]:
    """Return metric and tags of a series. Raise CorruptRow, or UnicodeDecodeError.

    >>> parse_series_id(b"m\\0host=a:")
    ('m', {'host': 'a'})
    """
    metric, _, tags = series.partition(b"\0")
    return metric.decode("utf-8", "surrogatepass"), parse_tags(tags)


class KairosResolver(ListedResolver):
    """Series texts → keys."""

    def __init__(self, tables: KairosTables, *, creates_metrics: bool) -> None:
        super().__init__(tables.metric_exists, creates_metrics=creates_metrics)
        self._tables = tables

    def key_of(self, text: SeriesText) -> SeriesKey:
        """See ListedResolver."""
        return key_of(text, self._tables.now_s())

    async def list_series(self, keys: Sequence[SeriesKey]) -> None:
        """Do nothing: series are listed with their first points."""
