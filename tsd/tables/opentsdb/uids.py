"""Names ↔ UIDs: look-ups in batches, caches, and OpenTSDB's crash-safe assignment (FORMATS.md §2).

A UID is assigned in three steps that several daemons, OpenTSDB's among them, may take at once: count the kind's counter
up, create UID → name, create name → UID. Each create succeeds for one of them only. Whoever loses the last step takes
the winner's UID; its own number stays unused.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy

import structlog
import trio

from tsd.bytemap import ByteMap
from tsd.codec.uid import COUNTER_ROW, Kind, Uid, Widths, capacity, decode_counter, encode_uid
from tsd.errors import CorruptRow, NoSuchName, StoreDown, TsdError, UidsExhausted
from tsd.store import Put, Store
from tsd.uid_flight import Cache, Flight, Found, KindStatistics, Permit, Remembered

log = structlog.get_logger(__name__)

LOOKUP_ROWS = 2000  # names asked for with one call
ROUNDS = 10  # numbers tried for a name before giving up: each lost one means that somebody else used it
RECHECKS = 5  # reads after a create whose answer was lost
WARN_AT = (0.5, 0.75, 0.9, 0.95, 0.99)  # parts of a kind's UIDs in use

Describe = Callable[[Kind], bytes] | None  # the metadata of a new UID, where it gets some


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
        """`describe` gives the metadata of a new UID of a kind."""
        self._store = store
        self._table = table
        self._kinds = {
            kind: _KindTable(store, table, kind, widths.of(kind), (name_cache, id_cache), random_metrics, describe)
            for kind in Kind
        }

    async def find(self, kind: Kind, names: Iterable[bytes]) -> Mapping[bytes, Found]:
        """The UID of each name, or NoSuchName. Raises StoreError."""
        return await self._kinds[kind].resolve(names, create=False)

    async def find_or_assign(
        self, kind: Kind, names: Iterable[bytes], permit: Permit | None = None
    ) -> Mapping[bytes, Found]:
        """The UID of each name, new ones assigned in the order given; or UidsExhausted, or why `permit` refused it.
        Raises StoreError."""
        return await self._kinds[kind].resolve(names, create=True, permit=permit)

    async def names(self, kind: Kind, uids: Iterable[bytes]) -> Mapping[bytes, bytes | NoSuchName]:
        """The name of each UID, or NoSuchName. Raises StoreError."""
        return await self._kinds[kind].names(uids)

    @property
    def generation(self) -> int:
        """A number that changes with every drop of the caches: what was found out across one may be out of date."""
        return sum(table.drops for table in self._kinds.values())

    def drop_caches(self) -> None:
        """Ask the store again from now on."""
        for table in self._kinds.values():
            table.drop_caches()

    def by_name(self, kind: Kind) -> ByteMap:
        """The UIDs that are kept of a kind, now and later, by name."""
        return self._kinds[kind].by_name

    def remembered(self) -> Iterator[Remembered]:
        """All that is kept, in parts that one call can look up, each as it is when it is asked for."""
        for table in self._kinds.values():
            yield from table.remembered()

    @property
    def parts(self) -> int:
        """In how many parts."""
        return sum(table.parts for table in self._kinds.values())

    async def changed(self, part: Remembered) -> list[bytes]:
        """The names and UIDs in a part that lead elsewhere by now, or nowhere. Raises StoreError."""
        there = await self._store.get(self._table, list(part.values), columns=[part.column])
        return [row for row, value in part.values.items() if row not in there or there[row][0].value != value]

    @property
    def overflows(self) -> int:
        """How often names were forgotten because there were too many."""
        return sum(table.overflows for table in self._kinds.values())

    async def read_counters(self) -> None:
        """Take note of how many UIDs of each kind are in use, and warn where they run out. Raises StoreError, and
        CorruptRow of the last counter that is none, when all have been read."""
        broken: CorruptRow | None = None
        for table in self._kinds.values():
            try:
                await table.read_counter()
            except CorruptRow as error:
                broken = error
        if broken is not None:
            raise broken

    def statistics(self) -> dict[Kind, KindStatistics]:
        """The numbers of this moment."""
        return {kind: table.statistics() for kind, table in self._kinds.items()}


class _KindTable:
    """One kind of names."""

    def __init__(
        self,
        store: Store,
        table: str,
        kind: Kind,
        width: int,
        caches: tuple[int, int],
        random: bool,
        describe: Describe,
    ) -> None:
        self._store = store
        self._table = table
        self._kind = kind
        self._width = width
        self._describe = describe
        self._random = random and kind is Kind.METRIC
        self._uid_of = Cache(caches[0])
        self._name_of = Cache(caches[1])
        self.drops = 0  # of the caches
        self._drops_before = 0  # when the flight under way began
        self._boarding: dict[bool, Flight] = {}  # by whether it creates
        self._runway = trio.Lock()
        self._used = 0
        self._warned = 0.0
        self._hits = self._misses = self._collisions = self._refused = 0

    async def resolve(
        self, names: Iterable[bytes], *, create: bool, permit: Permit | None = None
    ) -> dict[bytes, Found]:
        """The UID of each name, or why it has none."""
        found: dict[bytes, Found] = {}
        wanted: dict[bytes, None] = {}
        for name in names:
            if (uid := self._uid_of.get(name)) is not None:
                found[name] = Uid(uid)
            else:
                wanted[name] = None
        self._hits += len(found)
        self._misses += len(wanted)
        if wanted:
            flight = self._boarding.get(create)
            if flight is None:
                flight = self._boarding[create] = Flight()
                flight.board(wanted, permit)
                await self._fly(flight, create=create)
            else:
                flight.board(wanted, permit)
                await flight.landed.wait()
            if flight.error is not None:
                raise copy(flight.error)  # to each their own: a shared one would hold the frames of all who waited
            found.update((name, flight.found[name]) for name in wanted)
        return found

    async def _fly(self, flight: Flight, *, create: bool) -> None:
        """Resolve a flight's names. Shielded: others wait for it, whatever becomes of the task that started it."""
        with trio.CancelScope(shield=True):
            async with self._runway:
                del self._boarding[create]  # whoever comes now takes the next one
                try:
                    await self._resolve_flight(flight, create=create)
                except TsdError as error:
                    flight.error = error.with_traceback(None)  # or it and this frame would hold each other
                finally:
                    flight.landed.set()

    async def _resolve_flight(self, flight: Flight, *, create: bool) -> None:
        self._drops_before = self.drops
        missing = []
        for name in flight.names:
            if (known := self._uid_of.get(name)) is not None:
                flight.found[name] = Uid(known)
            else:
                missing.append(name)
        for name, uid in (await self._read_uids(missing)).items():
            flight.found[name] = uid
            self._remember(name, uid)
        missing = [name for name in missing if name not in flight.found]
        if create:
            allowed = [name for name in missing if self._may_have_one(name, flight)]
            if allowed:
                await self._assign(allowed, flight.found)
        for name in missing:
            if name not in flight.found:
                flight.found[name] = NoSuchName(f"No such name for '{self._kind.value}': '{name.decode('latin-1')}'")

    def _may_have_one(self, name: bytes, flight: Flight) -> bool:
        """Whether a new name is to get a UID; where not, the flight is told why."""
        for permit in flight.names[name]:
            why = permit.why_not(self._kind, name) if permit is not None else None
            if why is None:
                flight.found.pop(name, None)
                return True
            flight.found[name] = why
        return False

    async def _read_uids(self, names: Sequence[bytes]) -> dict[bytes, Found]:
        """The UIDs of those names that have one, as the store says now."""
        column = self._kind.id_column
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

    async def _assign(self, names: Sequence[bytes], found: dict[bytes, Found]) -> None:
        """Give each name a UID: `found` gets it, or UidsExhausted."""
        left = list(names)
        id_column, name_column = self._kind.id_column, self._kind.name_column
        for _ in range(ROUNDS):
            numbers = await self._numbers(len(left))
            for name in left[len(numbers) :]:
                self._refused += 1
                found[name] = self._exhausted()
            pairs = [(name, encode_uid(n, self._width)) for name, n in zip(left, numbers, strict=False)]
            # UID → name before name → UID: dying in between wastes a number; the other order would publish a UID that
            # nobody can read.
            reverse = [Put(uid, name_column, name) for name, uid in pairs]
            ours = await self._create(reverse)
            self._collisions += ours.count(False)
            left = [name for (name, _), won in zip(pairs, ours, strict=True) if not won]
            pairs = [pair for pair, won in zip(pairs, ours, strict=True) if won]
            forward = [Put(name, id_column, uid) for name, uid in pairs]
            ours = await self._create(forward)
            if self._describe is not None:
                meta = self._describe(self._kind)
                won = [uid for (_, uid), mine in zip(pairs, ours, strict=True) if mine]
                await self._store.put(self._table, [Put(uid, self._kind.meta_column, meta) for uid in won])
            lost = [name for (name, _), won in zip(pairs, ours, strict=True) if not won]
            winners = await self._read_uids(lost)
            for name, uid in [*(pair for pair, won in zip(pairs, ours, strict=True) if won), *winners.items()]:
                found[name] = uid
                self._remember(name, uid)
            left += [name for name in lost if name not in winners]  # deleted at this very moment
            if not left:
                return
        raise StoreDown(f"no UID for {left[0]!r} of '{self._kind.value}' after {ROUNDS} numbers that others had used")

    async def _numbers(self, count: int) -> list[int]:
        """Numbers that nobody else gets: `count`, or fewer where the kind's end is near."""
        if self._random:
            return [secrets.randbelow(capacity(min(self._width, 7))) + 1 for _ in range(count)]
        if not self._used or self._used + count > capacity(self._width):
            await self.read_counter()  # it only moves up: once it is at the end, it is left there
            count = min(count, capacity(self._width) - self._used)
            if count <= 0:
                return []
        # Never repeated: where the answer is lost, these numbers are, and nothing else.
        top = await self._store.increment(self._table, COUNTER_ROW, self._kind.id_column, count)
        self._note_used(top)
        if top <= 0:
            raise CorruptRow(f"UID table {self._table}: the counter of '{self._kind.value}' is {top}")
        return [number for number in range(top - count + 1, top + 1) if number <= capacity(self._width)]

    async def _create(self, puts: Sequence[Put]) -> list[bool]:
        """Which of the cells are now as wanted. A create whose answer was lost is settled by reading."""
        if not puts:
            return []
        try:
            return await self._store.create(self._table, puts)
        except StoreDown as lost:
            for attempt in range(RECHECKS):
                await trio.sleep(0.1 * 2**attempt)
                try:
                    again = await self._store.create(self._table, puts)
                    rows = await self._store.get(self._table, [put.row for put in puts], columns=[puts[0].column])
                except StoreDown:
                    continue
                return [
                    won or (put.row in rows and rows[put.row][0].value == put.value)
                    for put, won in zip(puts, again, strict=True)
                ]
            raise StoreDown(f"{lost}; whether {len(puts)} UIDs were assigned is not known") from lost

    async def names(self, uids: Iterable[bytes]) -> dict[bytes, bytes | NoSuchName]:
        """The name of each UID, or why it has none."""
        found: dict[bytes, bytes | NoSuchName] = {}
        wanted = []
        for uid in dict.fromkeys(uids):
            if (name := self._name_of.get(uid)) is not None:
                found[uid] = name
            else:
                wanted.append(uid)
        self._hits += len(found)
        self._misses += len(wanted)
        drops = self.drops
        for at in range(0, len(wanted), LOOKUP_ROWS):
            asked = wanted[at : at + LOOKUP_ROWS]
            rows = await self._store.get(self._table, asked, columns=[self._kind.name_column])
            for uid in asked:
                if uid in rows:
                    found[uid] = rows[uid][0].value
                    if drops == self.drops:
                        self._name_of.put(uid, rows[uid][0].value)
                else:
                    found[uid] = NoSuchName(f"No such unique ID for '{self._kind.value}': {uid.hex()}")
        return found

    @property
    def by_name(self) -> ByteMap:
        """What is kept, by name."""
        return self._uid_of.map

    def _remember(self, name: bytes, uid: Found) -> None:
        if isinstance(uid, bytes) and self.drops == self._drops_before:
            self._uid_of.put(name, uid)

    async def read_counter(self) -> None:
        """Note the counter as the store has it."""
        rows = await self._store.get(self._table, [COUNTER_ROW], columns=[self._kind.id_column])
        if rows:
            try:
                self._note_used(decode_counter(rows[COUNTER_ROW][0].value))
            except ValueError as exc:
                raise CorruptRow(f"UID table {self._table}, '{self._kind.value}': {exc}") from exc

    def _note_used(self, number: int) -> None:
        self._used = max(self._used, number)
        part = self._used / capacity(self._width)
        reached = max((mark for mark in WARN_AT if part >= mark), default=0.0)
        if reached > self._warned:
            self._warned = reached
            log.warning(
                "UIDs run out",
                kind=self._kind.value,
                used=self._used,
                of=capacity(self._width),
                what_to_do="find what makes new names (tsd uid grep), and stop it before the last one is used",
            )

    def _exhausted(self) -> UidsExhausted:
        return UidsExhausted(f"All Unique IDs for {self._kind.value} on {self._width} bytes are already assigned!")

    def drop_caches(self) -> None:
        """Forget both directions, and do not keep what is on its way."""
        self.drops += 1
        self._uid_of.clear()
        self._name_of.clear()

    def remembered(self) -> Iterator[Remembered]:
        """What is kept, a part at a time."""
        for column, cache in ((self._kind.id_column, self._uid_of), (self._kind.name_column, self._name_of)):
            for part in cache.parts(LOOKUP_ROWS):
                yield Remembered(column, part)

    @property
    def parts(self) -> int:
        """How many parts that is."""
        return sum(-(-len(cache) // LOOKUP_ROWS) for cache in (self._uid_of, self._name_of))

    @property
    def overflows(self) -> int:
        """How often a cache was full."""
        return self._uid_of.overflows + self._name_of.overflows

    def statistics(self) -> KindStatistics:
        """The numbers of this moment."""
        used = 0 if self._random else min(self._used, capacity(self._width))
        available = 0 if self._random else capacity(self._width) - used
        cached = len(self._uid_of) + len(self._name_of)
        return KindStatistics(
            self._hits + self._uid_of.map.looked_up,
            self._misses,
            cached,
            self._collisions,
            self._refused,
            used,
            available,
        )
