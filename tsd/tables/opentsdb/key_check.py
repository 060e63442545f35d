"""Whether the row keys of the data table fit the settings: a few rows are read.

Keys with and without a salt look alike. With another salt than the stored rows have, points are written where no other
reader finds them, and queries find nothing. A row fits settings if its key has their length and a base time of a whole
hour, and all of its UIDs have names. Rows that fit no settings are damaged or of another program, and prove nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle, islice

from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import (
    LARGEST_BUCKETS,
    WIDEST_SALT,
    KeyLayout,
    Series,
    SplitKey,
    bucket_counts,
    split_key,
)
from tsd.codec.putline import HOUR_S
from tsd.errors import CorruptRow, UnfitSettings
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.uids import Uids

PAGES, PAGE_ROWS = 18, 20
PREFIXES = (12, 8, 4, 3, 2, 1)  # bytes of a key that the next page skips: other hours, metrics and salts
SHOWN_COUNTS = 3  # of salts, in an error

Names = Mapping[tuple[Kind, bytes], bytes]  # names of those UIDs that have one


class KeyCheck:
    """Compares row keys with the settings."""

    def __init__(self, table: DataTable, uids: Uids) -> None:
        self._store, self._table, self._layout = table
        self._uids = uids
        self._fits = False

    async def check(self) -> None:
        """Raise UnfitSettings if no row that was read fits the settings, and some fit other ones; StoreError. What fits
        is not read again."""
        if self._fits:
            return
        await self._uids.check_widths()
        keys = await self._some_keys()
        if fitting := await self._fitting(keys, self._layout):
            await self._check_buckets(fitting)
        else:
            await self._check_other_widths(keys)
        self._fits = True

    async def _check_buckets(self, keys: Sequence[SplitKey]) -> None:
        """Raise UnfitSettings if the salts of all keys are those of another number of salts. Some keys may fit several
        numbers: the salts that a smaller one lacks are read, too."""
        wanted, keys = self._layout.salt_buckets, list(keys)
        if not self._layout.salt_width or wanted > min(1 << 8 * self._layout.salt_width, LARGEST_BUCKETS):
            return
        keys += await self._keys_from(wanted)
        while (counts := bucket_counts(keys)) and wanted not in counts:
            if others := await self._keys_from(counts[0]):
                keys += others
                continue
            shown = " or ".join(map(str, counts[:SHOWN_COUNTS])) + (" or more" if counts[SHOWN_COUNTS:] else "")
            raise UnfitSettings(
                f"table {self._table}: got row keys with the salts of tsd.storage.salt.buckets = {shown}, wanted those "
                f"of {wanted}, as it is set"
            )

    async def _keys_from(self, salt: int) -> list[SplitKey]:
        """Return a few keys that fit the settings and have this salt or a higher one."""
        width = self._layout.salt_width
        if salt >> 8 * width:
            return []
        page = await self._store.page(self._table, salt.to_bytes(width, "big"), None, limit=PAGE_ROWS)
        return await self._fitting((row.key for row in page.rows), self._layout)

    async def _check_other_widths(self, keys: Sequence[bytes]) -> None:
        """Raise UnfitSettings if keys fit another width of the salt."""
        for width in range(WIDEST_SALT + 1):
            if fitting := await self._fitting(keys, self._layout._replace(salt_width=width)):
                raise UnfitSettings(
                    f"table {self._table}: got row keys that fit tsd.storage.salt.width = {width} ({len(fitting)} of "
                    f"{len(keys)} that were read), and none that fits {self._layout.salt_width}, as it is set"
                )

    async def _some_keys(self) -> list[bytes]:
        """Return the keys of a few rows from several places of the table."""
        keys: list[bytes] = []
        at: bytes | None = b""
        for size in islice(cycle(PREFIXES), PAGES):
            if at is None:
                break
            page = await self._store.page(self._table, at, None, limit=PAGE_ROWS)
            keys += (row.key for row in page.rows)
            at = page.next_start
            if at is not None and page.rows:
                at = prefix_end(page.rows[-1].key[:size])
        return keys

    async def _fitting(self, keys: Iterable[bytes], layout: KeyLayout) -> list[SplitKey]:
        """Return the keys that fit a layout, in parts."""
        parts: list[SplitKey] = []
        for key in keys:
            with suppress(CorruptRow):
                parts.append(split_key(layout, key))
        parts = [part for part in parts if part.base % HOUR_S == 0 and any(part.series.metric)]
        names = await names_of(self._uids, (part.series for part in parts))
        return [part for part in parts if is_named(part.series, names)]


def is_named(series: Series, names: Names) -> bool:
    """Return whether a series has tags, and names for all its UIDs."""
    metric, pairs = series
    uids = [(Kind.METRIC, metric), *((Kind.TAGK, k) for k, _ in pairs), *((Kind.TAGV, v) for _, v in pairs)]
    return bool(pairs) and all(uid in names for uid in uids)


async def names_of(uids: Uids, series: Iterable[Series]) -> Names:
    """Return the names of those UIDs of series that have one. Raise StoreError."""
    wanted: dict[Kind, dict[bytes, None]] = {kind: {} for kind in Kind}
    for metric, pairs in series:
        wanted[Kind.METRIC][metric] = None
        for tagk, tagv in pairs:
            wanted[Kind.TAGK][tagk] = None
            wanted[Kind.TAGV][tagv] = None
    return {
        (kind, uid): name
        for kind in Kind
        for uid, name in (await uids.names(kind, wanted[kind])).items()
        if isinstance(name, bytes)
    }
