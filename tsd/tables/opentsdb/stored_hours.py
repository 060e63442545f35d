"""The hours of a metric in the data table, for the result cache: their keys, and which of them have changed."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from tsd.codec.opentsdb.rowkey import KeyLayout, base_bytes, salts
from tsd.codec.putline import HOUR_S
from tsd.store.capabilities import CellSignatures, ChangeFeed
from tsd.store.cells import CellSigner
from tsd.store.retry import run_bounded
from tsd.tables.reading import OnChange, ScanRange, SignatureSource, SignedHour

SIGNED_BYTES = 4 << 20  # of keys and columns per call that computes signatures


class StoredHours:
    """The hours of a selection's metric, for the result cache."""

    def __init__(self, metric: bytes, signatures: SignatureSource | None, *, reads_all: bool) -> None:
        """`signatures`: of a store that other processes write to."""
        self._metric = metric
        self.signatures = signatures
        self.reads_all = reads_all

    def keys(self, span: ScanRange) -> list[bytes]:
        """Return the part of row keys between salt and tag pairs, hour by hour."""
        metric = self._metric
        return [metric + base_bytes(base_s) for base_s in span.bases]


class StoredSignatures:
    """Signatures of the hours of a metric, for a store that other processes write to."""

    def __init__(self, signs: CellSignatures, table: str, layout: KeyLayout, metric: bytes, *, calls: int) -> None:
        """`calls`: most calls of the store at a time."""
        self._signs = signs
        self._table = table
        self._layout = layout
        self._metric = metric
        self._calls = calls

    def signing(self) -> CellSigner:
        """Start signatures: one for each salt, metric and hour."""
        return CellSigner(self._layout.pairs_start)

    def by_hour(self, signing: CellSigner, bases: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
        """Return the signatures of some hours, by the hour and the prefix of the row keys."""
        return self._by_hour(signing.finish(), bases)

    def _by_hour(self, signatures: dict[bytes, bytes], bases: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
        first, end = self._layout.metric_end, self._layout.pairs_start
        found: dict[int, dict[bytes, bytes]] = {base_s: {} for base_s in bases}
        for prefix, signature in signatures.items():
            found.get(int.from_bytes(prefix[first:end], "big"), {})[prefix] = signature
        return found

    async def read(self, hours: Sequence[SignedHour]) -> dict[int, dict[bytes, bytes]]:
        """Return the signatures as of now. Raise StoreError."""
        found: dict[int, dict[bytes, bytes]] = {}

        async def read(part: Sequence[SignedHour]) -> None:
            found.update(await self._read(part))

        await run_bounded(_runs_of_hours(hours), read, limit=self._calls)
        return found

    async def _read(self, hours: Sequence[SignedHour]) -> dict[int, dict[bytes, bytes]]:
        """Read the signatures of consecutive hours."""
        layout, found = self._layout, dict[bytes, bytes]()
        first_s, stop_s = hours[0].base_s, hours[-1].base_s + HOUR_S
        for salt in salts(layout):
            start, stop = (salt + self._metric + base_bytes(base_s) for base_s in (first_s, stop_s))
            found |= await self._signs.signatures(
                self._table, start, stop, width=layout.pairs_start, rows=sum(hour.rows for hour in hours)
            )
        return self._by_hour(found, [hour.base_s for hour in hours])


def _runs_of_hours(hours: Sequence[SignedHour]) -> Iterator[Sequence[SignedHour]]:
    """Split hours into runs of consecutive ones, each small enough for one call."""
    part: list[SignedHour] = []
    size = 0
    for hour in hours:
        if part and (hour.base_s != part[-1].base_s + HOUR_S or size + hour.names_size > SIGNED_BYTES):
            yield part
            part, size = [], 0
        part.append(hour)
        size += hour.names_size
    if part:
        yield part


class StoredChanges:
    """Notifications from the store about writes to the data table."""

    def __init__(self, feed: ChangeFeed, table: str, layout: KeyLayout) -> None:
        self._feed = feed
        self._table = table
        self._part = slice(layout.salt_width, layout.pairs_start)

    def on_change(self, callback: OnChange) -> None:
        """Call `callback` on each write."""

        def changed(rows: Iterable[bytes] | None) -> None:
            callback(None if rows is None else partial(self._hours, rows))

        self._feed.subscribe(self._table, changed)

    def _hours(self, rows: Iterable[bytes]) -> set[bytes]:
        part = self._part
        return {row[part] for row in rows}


class SignedChanges:
    """A change source without notifications: cached hours are checked by their signatures."""

    def on_change(self, callback: OnChange) -> None:
        """Do nothing."""
