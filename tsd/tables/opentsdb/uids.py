"""Names ↔ UIDs: look-ups in batches, caches, and OpenTSDB's crash-safe assignment (FORMATS.md §2).

A UID is assigned in three steps that several daemons, OpenTSDB among them, may take concurrently: increment the kind's
counter, create UID → name, create name → UID. Each create succeeds for one daemon only. The loser of the last step uses
the winner's UID, and deletes its own UID → name, which nothing refers to. Its number stays unused.

Concurrent look-ups of one kind share a batch (single flight): names that arrive while a batch is running wait for the
next one.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import NamedTuple

import trio

from tsd.codec.bytemap import ByteMap
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    Uid,
    capacity,
    decode_counter,
    encode_uid,
    id_column,
    meta_column,
    name_column,
)
from tsd.errors import CorruptRow, NoSuchName, StoreDown, StoreError, TsdError, UidsExhausted, UnfitSettings
from tsd.lazy import LazyLogger
from tsd.store import Cell, Put, Store
from tsd.tables.opentsdb.name_cache import NameCache
from tsd.tables.writing import Admission

log = LazyLogger(__name__)


SHOWN_BYTES = 60  # of a long name, in an error

Found = Uid | TsdError


class NameBatch:
    """One batch of names to resolve. All callers that need one of its names wait for it."""

    def __init__(self) -> None:
        self.names: dict[bytes, tuple[Admission | None, ...]] = {}  # each with the admissions of all its callers
        self.found: dict[bytes, Found] = {}
        self.error: TsdError | None = None
        self.done = trio.Event()
        self.drops = 0  # of the caches, when it began

    def add(self, names: Iterable[bytes], admission: Admission | None) -> None:
        """Add names. A name with several callers is assigned if the admission of one of them allows it."""
        for name in names:
            self.names[name] = (*self.names.get(name, ()), admission)


class UidStatistics(NamedTuple):
    """Statistics of one kind of names."""

    hits: int
    misses: int
    cached: int
    collisions: int
    refused: int
    used: int  # the counter as last read
    available: int


class CachedCells(NamedTuple):
    """Cells of one column of the UID table, as cached."""

    column: bytes
    values: dict[bytes, bytes]  # by row


LOOKUP_ROWS = 2000  # names per call of the store
FIRST_NAME = b"!"  # the first printable character; before it are counters, and the UIDs of the first two million names
CHECKED_NAMES = 100  # whose UIDs' widths are compared with the settings
WIDTH_SETTINGS = {
    Kind.METRIC: "tsd.storage.uid.width.metric",
    Kind.TAGK: "tsd.storage.uid.width.tagk",
    Kind.TAGV: "tsd.storage.uid.width.tagv",
}
MAX_ATTEMPTS = 10  # numbers tried for one name, if other processes already use them
MAX_RECHECKS = 5  # retries of a create whose response was lost
RECHECKED = 20  # cells that a retry creates at once
WARN_AT = (0.5, 0.75, 0.9, 0.95, 0.99)  # of a kind's UIDs used

Describe = Callable[[Kind], bytes] | None  # returns the metadata of a new UID


class Uids:
    """The UID table of one store."""

    def __init__(
        self,
        store: Store,
        table: str,
        widths: Widths,
        *,
        random_metrics: bool = False,
        name_cache: int = 1_000_000,
        id_cache: int = 1_000_000,
        describe: Describe = None,
    ) -> None:
        """`describe` returns the metadata of a new UID of a kind; None: new UIDs get none."""
        self._store = store
        self._table = table
        self._widths = widths
        self._fits = False
        self._kinds = {
            kind: _KindTable(
                store, table, kind, widths.of(kind), (name_cache, id_cache), random_metrics, describe, self.check_widths
            )
            for kind in Kind
        }

    async def check_widths(self) -> None:
        """Raise UnfitSettings if the UIDs of the first names have another width than configured, StoreError. If some
        have the right width, or none is the UID of its name, the others are damaged. What fits is not read again."""
        if self._fits:
            return
        columns = {id_column(kind): kind for kind in Kind}
        page = await self._store.page(self._table, FIRST_NAME, None, limit=CHECKED_NAMES, columns=list(columns))
        found: dict[Kind, dict[bytes, bytes]] = {}
        for row in page.rows:
            for cell in row.cells:
                found.setdefault(columns[cell.column], {})[cell.value] = row.key
        for kind, names in found.items():
            wanted, got = self._widths.of(kind), sorted(set(map(len, names)))
            if wanted not in got and await self._has_any(kind, names):
                raise UnfitSettings(
                    f"UID table {self._table}: got UIDs of '{kind.value}' with {' or '.join(map(str, got))} "
                    f"bytes, wanted {wanted} ({WIDTH_SETTINGS[kind]})"
                )
        self._fits = True

    async def _has_any(self, kind: Kind, names: Mapping[bytes, bytes]) -> bool:
        """Return whether the table has any of the names under its UID, too."""
        column = name_column(kind)
        rows = await self._store.get(self._table, [uid for uid in names if uid], columns=[column])
        return any(cells[0].value == names[uid] for uid, cells in rows.items())

    async def find(self, kind: Kind, names: Iterable[bytes]) -> Mapping[bytes, Found]:
        """Return the UID of each name, or NoSuchName. Raise StoreError."""
        return await self._kinds[kind].resolve(names, create=False)

    async def find_or_assign(
        self, kind: Kind, names: Iterable[bytes], admission: Admission | None = None
    ) -> Mapping[bytes, Found]:
        """Return the UID of each name, new ones assigned in the order given; or UidsExhausted, or the error of
        `admission`. Raise StoreError."""
        return await self._kinds[kind].resolve(names, create=True, admission=admission)

    async def names(self, kind: Kind, uids: Iterable[bytes]) -> Mapping[bytes, bytes | NoSuchName]:
        """Return the name of each UID, or NoSuchName. Raise StoreError."""
        return await self._kinds[kind].names(uids)

    @property
    def drops(self) -> int:
        """How often the caches were dropped. UIDs read before a drop may be stale."""
        return sum(table.drops for table in self._kinds.values())

    @property
    def changes(self) -> int:
        """A number that changes when names leave a cache: what was found before may not be as the store has it."""
        total = 0
        for table in self._kinds.values():  # without calls: each repeated query looks at it
            total += table.drops + table.uid_of.overflows + table.name_of.overflows
        return total

    def count_hits(self, hits: Mapping[Kind, int]) -> None:
        """Count names that were found before, and not looked up again."""
        for kind, count in hits.items():
            self._kinds[kind].count_hits(count)

    def drop_caches(self) -> None:
        """Drop the caches, so that names are read from the store again."""
        for table in self._kinds.values():
            table.drop_caches()

    def by_name(self, kind: Kind) -> ByteMap:
        """Return the cache of a kind's UIDs by name."""
        return self._kinds[kind].by_name

    def cached(self) -> Iterator[CachedCells]:
        """Yield all cached cells, in chunks that one call of the store can check."""
        for table in self._kinds.values():
            yield from table.cached()

    @property
    def chunks(self) -> int:
        """How many chunks `cached` gives."""
        return sum(table.chunks for table in self._kinds.values())

    async def changed(self, cells: CachedCells) -> list[bytes]:
        """Return the rows (names or UIDs) of cached cells that the store does not have any more. Raise StoreError."""
        stored = await self._store.get(self._table, list(cells.values), columns=[cells.column])
        return [row for row, value in cells.values.items() if row not in stored or stored[row][0].value != value]

    @property
    def overflows(self) -> int:
        """How often a cache was full."""
        return sum(table.overflows for table in self._kinds.values())

    async def read_counters(self) -> None:
        """Read how many UIDs of each kind are used, and warn if they run out. Raise StoreError; and, after taking all
        counters, CorruptRow if one is damaged."""
        broken: CorruptRow | None = None
        before = {kind: table.used for kind, table in self._kinds.items()}
        rows = await self._store.get(self._table, [COUNTER_ROW], columns=[id_column(kind) for kind in self._kinds])
        for kind, table in self._kinds.items():
            try:
                table.take_counter(rows.get(COUNTER_ROW, ()), at_least=before[kind])
            except CorruptRow as error:
                broken = error
        if broken is not None:
            raise broken

    def take_falls(self) -> list[Kind]:
        """Return the kinds whose counters have fallen since the last call. Counters only grow, so that the table was
        made again or restored."""
        fallen = [kind for kind, table in self._kinds.items() if table.has_fallen]
        for kind in fallen:
            self._kinds[kind].has_fallen = False
        return fallen

    def statistics(self) -> dict[Kind, UidStatistics]:
        """Return the present statistics."""
        return {kind: table.statistics() for kind, table in self._kinds.items()}


def _names_another(found: Found, uid: Uid) -> bool:
    """Return whether a name was found with a UID other than this one."""
    return isinstance(found, bytes) and found != uid


class _KindTable:
    """The names and UIDs of one kind."""

    def __init__(
        self,
        store: Store,
        table: str,
        kind: Kind,
        width: int,
        caches: tuple[int, int],
        random: bool,
        describe: Describe,
        check_widths: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._table = table
        self._kind = kind
        self._width = width
        self._describe = describe
        self._check_widths = check_widths
        self._random = random and kind is Kind.METRIC
        self.uid_of = NameCache(caches[0])
        self.name_of = NameCache(caches[1])
        self.drops = 0  # of the caches
        self._waiting: dict[bool, NameBatch] = {}  # the next batch that does not create, and the next that does
        # Names that are only looked up do not wait for other names to be assigned, which may take long.
        self._running = {False: trio.Lock(), True: trio.Lock()}
        self._creating: NameBatch | None = None  # the running batch that creates
        self.used = 0
        self.has_fallen = False  # whether the counter has, see `Uids.take_falls`
        self._warned = 0.0
        self._hits = self._misses = self._collisions = self._refused = 0

    async def resolve(
        self, names: Iterable[bytes], *, create: bool, admission: Admission | None = None
    ) -> dict[bytes, Found]:
        """Return the UID of each name, or why it has none."""
        found: dict[bytes, Found] = {}
        wanted: dict[bytes, None] = {}
        for name in names:
            if (uid := self.uid_of.get(name)) is not None:
                found[name] = Uid(uid)
            else:
                wanted[name] = None
        self._hits += len(found)
        self._misses += len(wanted)
        if wanted:
            assigning = [] if create else [one for one in (self._creating, self._waiting.get(True)) if one is not None]
            batch = self._waiting.get(create)
            if batch is None:
                batch = self._waiting[create] = NameBatch()
                batch.add(wanted, admission)
                await self._run(batch, create=create)
            else:
                batch.add(wanted, admission)
                await batch.done.wait()
            if batch.error is not None:
                raise copy(batch.error)  # a shared exception would hold the frames of all callers
            found.update((name, batch.found[name]) for name in wanted)
            for one in assigning:
                await self._add_assigned(one, found)
        return found

    async def _add_assigned(self, batch: NameBatch, found: dict[bytes, Found]) -> None:
        """Add the UIDs of names that a creating batch had before their lookup found none: points of theirs may be
        acknowledged."""
        missing = [name for name, uid in found.items() if isinstance(uid, NoSuchName) and name in batch.names]
        if not missing:
            return
        await batch.done.wait()
        if batch.error is not None:
            raise copy(batch.error)
        found.update((name, batch.found[name]) for name in missing if isinstance(batch.found[name], bytes))

    async def _run(self, batch: NameBatch, *, create: bool) -> None:
        """Resolve a batch. Shielded from cancellation, because other tasks wait for the batch."""
        with trio.CancelScope(shield=True):
            async with self._running[create]:
                del self._waiting[create]  # names added from now on go into the next batch
                if create:
                    self._creating = batch
                try:
                    await self._resolve_batch(batch, create=create)
                except TsdError as error:
                    batch.error = error.with_traceback(None)  # avoids a reference cycle with this frame
                finally:
                    batch.done.set()
                    if create:
                        self._creating = None

    async def _resolve_batch(self, batch: NameBatch, *, create: bool) -> None:
        batch.drops = self.drops
        missing = []
        for name in batch.names:
            if (known := self.uid_of.get(name)) is not None:
                batch.found[name] = Uid(known)
            else:
                missing.append(name)
        for name, uid in (await self._read_uids(missing)).items():
            batch.found[name] = uid
            self._cache(name, uid, batch)
        missing = [name for name in missing if name not in batch.found]
        if create:
            allowed = [name for name in missing if self._fits(name, batch) and self._is_admitted(name, batch)]
            if allowed:
                await self._assign(allowed, batch)
        for name in missing:
            if name not in batch.found:
                batch.found[name] = NoSuchName(f"No such name for '{self._kind.value}': '{name.decode('latin-1')}'")

    def _fits(self, name: bytes, batch: NameBatch) -> bool:
        """Return whether a name can be a row key. If not, the batch gets the error."""
        longest = self._store.capabilities.longest_key
        if len(name) > longest:
            shown = name[:SHOWN_BYTES].decode("latin-1")
            wanted = f"Invalid {self._kind.value}: got {len(name)} bytes, wanted up to {longest}"
            batch.found[name] = TsdError(f"{wanted}: '{shown}...'")
        return len(name) <= longest

    def _is_admitted(self, name: bytes, batch: NameBatch) -> bool:
        """Return whether a new name may get a UID. If not, the batch gets the error."""
        for admission in batch.names[name]:
            why = admission.admit_name(self._kind, name) if admission is not None else None
            if why is None:
                batch.found.pop(name, None)
                return True
            batch.found[name] = why
        return False

    async def _read_uids(self, names: Sequence[bytes]) -> dict[bytes, Found]:
        """Return the UIDs in the store of those names that have one."""
        column = id_column(self._kind)
        found: dict[bytes, Found] = {}
        for at in range(0, len(names), LOOKUP_ROWS):
            rows = await self._store.get(self._table, names[at : at + LOOKUP_ROWS], columns=[column])
            for name, cells in rows.items():
                uid = cells[0].value
                found[name] = Uid(uid)
                if len(uid) != self._width:
                    found[name] = CorruptRow(
                        f"Found id.length = {len(uid)} which is != {self._width} required for '{self._kind.value}'"
                    )
        return found

    async def _assign(self, names: Sequence[bytes], batch: NameBatch) -> None:
        """Assign each name a UID. The batch gets the UID, or UidsExhausted. Raise UnfitSettings, StoreError."""
        await self._check_widths()
        left, found = list(names), batch.found
        named: list[tuple[bytes, Uid]] = []  # UID → name entries that this call created
        id_of_name, name_of_id = id_column(self._kind), name_column(self._kind)
        for _ in range(MAX_ATTEMPTS):
            numbers = await self._numbers(len(left))
            for name in left[len(numbers) :]:
                self._refused += 1
                found[name] = self._exhausted()
            pairs = [(name, encode_uid(n, self._width)) for name, n in zip(left, numbers, strict=False)]
            # UID → name before name → UID: a crash in between wastes a number. The other order would publish a UID
            # without a name.
            reverse = [Put(uid, name_of_id, name) for name, uid in pairs]
            created = await self._create(reverse)
            self._collisions += created.count(False)
            left = [name for (name, _), won in zip(pairs, created, strict=True) if not won]
            pairs = [pair for pair, won in zip(pairs, created, strict=True) if won]
            named += pairs
            forward = [Put(name, id_of_name, uid) for name, uid in pairs]
            created = await self._create(forward)
            if self._describe is not None:
                meta = self._describe(self._kind)
                won = [uid for (_, uid), is_created in zip(pairs, created, strict=True) if is_created]
                await self._store.put(self._table, [Put(uid, meta_column(self._kind), meta) for uid in won])
            lost = [name for (name, _), won in zip(pairs, created, strict=True) if not won]
            winners = await self._read_uids(lost)
            for name, uid in [*(pair for pair, won in zip(pairs, created, strict=True) if won), *winners.items()]:
                found[name] = uid
                self._cache(name, uid, batch)
            left += [name for name in lost if name not in winners]  # deleted meanwhile
            if not left:
                await self._remove_unused([(name, uid) for name, uid in named if _names_another(found[name], uid)])
                return
        raise StoreDown(
            f"no UID for {left[0]!r} of '{self._kind.value}' after {MAX_ATTEMPTS} numbers that other processes use"
        )

    async def _remove_unused(self, pairs: Sequence[tuple[bytes, Uid]]) -> None:
        """Delete UID → name entries of this daemon, after name → UID was read with another UID.

        An entry with another name is kept: a repair has changed it. If the store fails, the entries stay: they do no
        harm, and `uid fsck` reports them.
        """
        column = name_column(self._kind)
        try:
            for at in range(0, len(pairs), LOOKUP_ROWS):
                chunk = pairs[at : at + LOOKUP_ROWS]
                stored = await self._store.get(self._table, [uid for _, uid in chunk], columns=[column])
                by_time: dict[int, dict[bytes, list[bytes]]] = {}
                for name, uid in chunk:
                    for cell in stored.get(uid, ()):
                        if cell.value == name:
                            by_time.setdefault(cell.time_ms, {})[uid] = [column]
                for time_ms, columns in by_time.items():
                    await self._store.delete(self._table, columns, up_to_ms=time_ms)
        except StoreError as error:
            log.warning("uids.unused_left", kind=self._kind.value, count=len(pairs), error=str(error))

    async def _numbers(self, count: int) -> list[int]:
        """Return numbers reserved for this daemon: `count`, or fewer if the kind is nearly exhausted."""
        if self._random:
            return [secrets.randbelow(capacity(min(self._width, 7))) + 1 for _ in range(count)]
        if not self.used or self.used + count > capacity(self._width):
            await self.read_counter()  # counters only grow: an exhausted one is not incremented
            count = min(count, capacity(self._width) - self.used)
            if count <= 0:
                return []
        # Not retried: if the response is lost, these numbers stay unused.
        before = self.used
        top = await self._store.increment(self._table, COUNTER_ROW, id_column(self._kind), count)
        if top <= 0:
            raise CorruptRow(f"UID table {self._table}: the counter of '{self._kind.value}' is {top}")
        self._set_used(top, at_least=before + count)
        return [number for number in range(top - count + 1, top + 1) if number <= capacity(self._width)]

    async def _create(self, puts: Sequence[Put]) -> list[bool]:
        """Create cells and return for each whether it now has the given value. If the response was lost, read them: a
        few at a time, so that a slow store answers in time."""
        if not puts:
            return []
        try:
            return await self._store.create(self._table, puts)
        except StoreDown as lost:
            done: list[bool] = []
            for attempt in range(MAX_RECHECKS):
                await trio.sleep(0.1 * 2**attempt)
                with suppress(StoreDown):
                    while len(done) < len(puts):
                        done += await self._create_again(puts[len(done) : len(done) + RECHECKED])
                    return done
            raise StoreDown(f"{lost}; it is unknown whether {len(puts) - len(done)} UIDs were assigned") from lost

    async def _create_again(self, puts: Sequence[Put]) -> list[bool]:
        """Create cells that may be there already, and return for each whether it now has the given value."""
        again = await self._store.create(self._table, puts)
        rows = await self._store.get(self._table, [put.row for put in puts], columns=[puts[0].column])
        return [
            won or (put.row in rows and rows[put.row][0].value == put.value)
            for put, won in zip(puts, again, strict=True)
        ]

    async def names(self, uids: Iterable[bytes]) -> dict[bytes, bytes | NoSuchName]:
        """Return the name of each UID, or why it has none."""
        found: dict[bytes, bytes | NoSuchName] = {}
        wanted = []
        for uid in dict.fromkeys(uids):
            if (name := self.name_of.get(uid)) is not None:
                found[uid] = name
            else:
                wanted.append(uid)
        self._hits += len(found)
        self._misses += len(wanted)
        drops = self.drops
        for at in range(0, len(wanted), LOOKUP_ROWS):
            chunk = wanted[at : at + LOOKUP_ROWS]
            rows = await self._store.get(self._table, chunk, columns=[name_column(self._kind)])
            for uid in chunk:
                if uid in rows:
                    found[uid] = rows[uid][0].value
                    if drops == self.drops:
                        self.name_of.put(uid, rows[uid][0].value)
                else:
                    found[uid] = NoSuchName(f"No such unique ID for '{self._kind.value}': {uid.hex()}")
        return found

    @property
    def by_name(self) -> ByteMap:
        """The cache of UIDs by name."""
        return self.uid_of.map

    def _cache(self, name: bytes, uid: Found, batch: NameBatch) -> None:
        if isinstance(uid, bytes) and self.drops == batch.drops:
            self.uid_of.put(name, uid)

    async def read_counter(self) -> None:
        """Read the counter from the store."""
        before = self.used
        rows = await self._store.get(self._table, [COUNTER_ROW], columns=[id_column(self._kind)])
        self.take_counter(rows.get(COUNTER_ROW, ()), at_least=before)

    def take_counter(self, cells: Iterable[Cell], *, at_least: int) -> None:
        """Take the counter from the cells of its row. It was `at_least` that large before they were read. Raise
        CorruptRow."""
        values = [cell.value for cell in cells if cell.column == id_column(self._kind)]
        try:
            number = decode_counter(values[0]) if values else 0
        except ValueError as exc:
            raise CorruptRow(f"UID table {self._table}, '{self._kind.value}': {exc}") from exc
        self._set_used(number, at_least=at_least)

    def _set_used(self, number: int, *, at_least: int) -> None:
        """Set the number of used UIDs. It was `at_least` that large before the store was asked."""
        fell = number < at_least
        self.has_fallen |= fell
        self.used = number if fell else max(self.used, number)
        part = self.used / capacity(self._width)
        reached = max((mark for mark in WARN_AT if part >= mark), default=0.0)
        if reached > self._warned:
            self._warned = reached
            log.warning(
                "uids.running_out",
                kind=self._kind.value,
                used=self.used,
                capacity=capacity(self._width),
                next_step="find the source of new names (tsd uid grep), and stop it before UIDs are exhausted",
            )

    def _exhausted(self) -> UidsExhausted:
        return UidsExhausted(f"All Unique IDs for {self._kind.value} on {self._width} bytes are already assigned!")

    def count_hits(self, count: int) -> None:
        """Count names that were not looked up again."""
        self._hits += count

    def drop_caches(self) -> None:
        """Clear both caches, and do not cache what the running batches find."""
        self.drops += 1
        self.uid_of.clear()
        self.name_of.clear()

    def cached(self) -> Iterator[CachedCells]:
        """Yield the cached cells, in chunks."""
        for column, cache in ((id_column(self._kind), self.uid_of), (name_column(self._kind), self.name_of)):
            for chunk in cache.chunks(LOOKUP_ROWS):
                yield CachedCells(column, chunk)

    @property
    def chunks(self) -> int:
        """How many chunks `cached` gives."""
        return sum(-(-len(cache) // LOOKUP_ROWS) for cache in (self.uid_of, self.name_of))

    @property
    def overflows(self) -> int:
        """How often a cache was full."""
        return self.uid_of.overflows + self.name_of.overflows

    def statistics(self) -> UidStatistics:
        """Return the present statistics."""
        used = 0 if self._random else min(self.used, capacity(self._width))
        available = 0 if self._random else capacity(self._width) - used
        cached = len(self.uid_of) + len(self.name_of)
        return UidStatistics(
            self._hits + self.uid_of.map.looked_up,
            self._misses,
            cached,
            self._collisions,
            self._refused,
            used,
            available,
        )
