"""Maintenance of the UID table: check and repair, rename, delete, cache revalidation, and usage.

Daemons may assign UIDs meanwhile: a cell is overwritten or deleted only if it still has the value that was read.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import trio

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import COUNTER_ROW, capacity, decode_counter, id_column, meta_column, name_column
from tsd.codec.opentsdb.uid_fsck import UidCell, UidCheck, UidFinding, check_uids
from tsd.errors import CorruptRow, NoSuchName, StoreError, TsdError, UnfitSettings
from tsd.lazy import LazyLogger
from tsd.store import Cell, Put, Store, scan
from tsd.tables.catalog import NameTaken
from tsd.tables.opentsdb.uids import Uids

log = LazyLogger(__name__)


# A younger cell may belong to an unfinished assignment or rename. While HBase is down, a daemon may take minutes
# between two steps of an assignment.
SETTLED_MS = 600_000

Place = tuple[bytes, bytes]  # row, column


class InconsistentName(TsdError):
    """The two directions of a name contradict each other: `tsd uid fsck` repairs them."""


class ChangedMeanwhile(TsdError):
    """Another process changed the table at the same time."""


class UidRepair(NamedTuple):
    """What a repair changed."""

    written: int
    deleted: int
    raised: Mapping[Kind, int]  # increase of each counter
    left: list[str]  # reasons for repairs that were not made


class UidFsck:
    """Checks and repairs a whole UID table."""

    def __init__(
        self, store: Store, table: str, widths: Widths, now_ms: Callable[[], int], *, random_metrics: bool = False
    ) -> None:
        self._store = store
        self._table = table
        self._widths = widths
        self._now_ms = now_ms
        self._random_metrics = random_metrics

    async def check(self, on_rows: Callable[[int], None] = lambda _: None) -> UidCheck:
        """Check the table. `on_rows` is called with the number of rows of each page read."""
        return (await self._check_twice(on_rows, fix=False, delete_unknown=False))[0]

    async def repair(
        self, on_rows: Callable[[int], None] = lambda _: None, *, delete_unknown: bool = False
    ) -> tuple[UidCheck, UidRepair]:
        """Check and repair the table."""
        check, cells = await self._check_twice(on_rows, fix=True, delete_unknown=delete_unknown)
        left: list[str] = []
        written = deleted = 0
        for put in check.puts:
            if await self._write(put, cells, left):
                written += 1
        if not left:  # deletes are safe only after all puts
            for place in check.deletes:
                deleted += await self._delete(place, cells, left)
        for kind, by in check.raises.items():
            await self._store.increment(self._table, COUNTER_ROW, id_column(kind), by)
        return check, UidRepair(written, deleted, check.raises, left)

    async def _check_twice(
        self, on_rows: Callable[[int], None], *, fix: bool, delete_unknown: bool
    ) -> tuple[UidCheck, Mapping[Place, Cell]]:
        """Check twice and return only findings of both checks: a scan is not a snapshot, so it may read a name that is
        just being assigned half-written."""

        def check_cells(cells: Mapping[Place, Cell]) -> UidCheck:
            return check_uids(
                (UidCell(*place, cell.value) for place, cell in cells.items()),
                self._widths,
                fix=fix,
                delete_unknown=delete_unknown,
                random_metrics=self._random_metrics,
            )

        cells = await self._read(on_rows)
        first = check_cells(cells)
        if not first.findings:
            return first, cells
        cells = await self._read(on_rows)
        second = check_cells(cells)
        seen: set[UidFinding] = set(first.findings)
        return second._replace(findings=[one for one in second.findings if one.of_counter or one in seen]), cells

    async def _read(self, on_rows: Callable[[int], None]) -> dict[Place, Cell]:
        cells: dict[Place, Cell] = {}
        async for rows in scan(self._store, self._table):
            cells.update(((row.key, cell.column), cell) for row in rows for cell in row.cells)
            on_rows(len(rows))
        # The first row has the counters. Read last, they include every UID assigned meanwhile.
        counters = await self._store.get(self._table, [COUNTER_ROW])
        cells.update(((COUNTER_ROW, cell.column), cell) for cell in counters.get(COUNTER_ROW, ()))
        return cells

    async def _write(self, put: UidCell, cells: Mapping[Place, Cell], left: list[str]) -> bool:
        before = cells.get((put.row, put.column))
        if before is not None and self._is_young(before):
            left.append(f"{_show(put.row, put.column)} is too young to be overwritten: an assignment may be running")
        elif await self._store.check_and_put(
            self._table, put.row, put.column, put.value, expected=before.value if before else None
        ):
            return True
        else:
            left.append(f"{_show(put.row, put.column)} was changed meanwhile")
        return False

    async def _delete(self, place: Place, cells: Mapping[Place, Cell], left: list[str]) -> bool:
        cell = cells[place]
        if self._is_young(cell):
            left.append(f"{_show(*place)} is too young to be deleted: an assignment may be running")
            return False
        await self._store.delete(self._table, {place[0]: [place[1]]}, up_to_ms=cell.time_ms)
        return True

    def _is_young(self, cell: Cell) -> bool:
        return self._now_ms() - cell.time_ms < SETTLED_MS


async def rename(store: Store, table: str, kind: Kind, old: bytes, new: bytes) -> bytes:
    """Give the UID of `old` the name `new`, and return the UID. Raise NoSuchName if `old` has none, NameTaken if
    `new` has one, InconsistentName, ChangedMeanwhile, StoreError.

    Same order as OpenTSDB: UID → name, new name → UID, then the old name is deleted. After a crash in between, `uid
    fsck` or the same rename completes the work.
    """
    rows = await store.get(table, [old, new], columns=[id_column(kind)])
    if old not in rows:
        raise NoSuchName(f"No such name for '{kind.value}': '{_text(old)}'")
    uid = rows[old][0].value
    taken = rows[new][0].value if new in rows else None
    if old == new or taken not in (None, uid):
        raise NameTaken(f"An UID with name {_text(new)} for {kind.value} already exists")
    names = await store.get(table, [uid], columns=[name_column(kind)])
    name = names[uid][0].value if uid in names else None
    if name not in (None, old, new):
        raise InconsistentName(
            f"the name of {uid.hex()} is {_text(name or b'')}, not {_text(old)}: run tsd uid fsck first"
        )
    if name != new and not await store.check_and_put(table, uid, name_column(kind), new, expected=name):
        raise ChangedMeanwhile(f"{uid.hex()} got another name meanwhile")
    if not await _publish(store, table, kind, new, uid):
        await store.check_and_put(table, uid, name_column(kind), old, expected=new)
        raise ChangedMeanwhile(f"{_text(new)} got a UID meanwhile")
    await store.delete(table, {old: [id_column(kind)]}, up_to_ms=rows[old][0].time_ms)
    return uid


async def _publish(store: Store, table: str, kind: Kind, name: bytes, uid: bytes) -> bool:
    """Write name → UID unless the name has another UID. Return whether it is stored."""
    [made] = await store.create(table, [Put(name, id_column(kind), uid)])
    if made:
        return True
    rows = await store.get(table, [name], columns=[id_column(kind)])
    return name in rows and rows[name][0].value == uid


async def delete(store: Store, table: str, kind: Kind, name: bytes) -> bytes:
    """Delete a name and its UID, and return the UID. Rows with the UID stay, without a name. Raise NoSuchName,
    StoreError.

    The name is deleted first, so that a crash in between, or a concurrent write, never finds a UID without a name.
    """
    rows = await store.get(table, [name], columns=[id_column(kind)])
    if name not in rows:
        raise NoSuchName(f"No such name for '{kind.value}': '{_text(name)}'")
    uid = rows[name][0].value
    columns = [name_column(kind), meta_column(kind)]
    described = (await store.get(table, [uid], columns=columns)).get(uid, [])
    await store.delete(table, {name: [id_column(kind)]}, up_to_ms=rows[name][0].time_ms)
    # If several names have one UID (`uid fsck` finds that), only one is the UID's own name.
    if not any(cell.column == name_column(kind) and cell.value != name for cell in described):
        for cell in described:
            await store.delete(table, {uid: [cell.column]}, up_to_ms=cell.time_ms)
    return uid


def _show(row: bytes, column: bytes) -> str:
    shown = _text(row) if column.startswith(b"id:") else row.hex()
    return f"{shown} {column.decode('latin-1')}"


def _text(name: bytes) -> str:
    return name.decode("latin-1")


COUNTER_REPAIR = "set the counter to 8 bytes, big-endian, no less than the highest UID in use (tsd uid grep KIND .)"
REPLACED_REPAIR = (
    "points that were accepted until now and not stored before have UIDs of the old table: tsd fsck --full-scan finds "
    "those without names. Stop all daemons before the table is replaced"
)
COUNTERS_S = 600  # between reads of the counters
SHARED_COUNTERS_S = 10  # where other processes increment them, and may replace the table


async def watch_counters(uids: Uids, period_s: float, on_change: Callable[[], None]) -> None:
    """Warn when UIDs run out, also if other processes assign them, or have another width. Call `on_change`, which must
    drop the caches, when the table was replaced. Never returns."""
    while True:
        try:
            await uids.check_widths()
            await uids.read_counters()
        except UnfitSettings as error:
            log.error("uids.wrong_width", error=str(error))
        except StoreError as error:
            log.debug("uids.counters_unread", error=str(error))
        except CorruptRow as error:  # existing names need no counter
            log.error("uids.counter_damaged", error=str(error), next_step=COUNTER_REPAIR)
        if fallen := uids.take_falls():
            kinds = " ".join(kind.value for kind in fallen)
            log.error("uids.table_replaced", kinds=kinds, next_step=REPLACED_REPAIR)
            on_change()
        await trio.sleep(period_s)


async def recheck_forever(uids: Uids, period_s: float, on_change: Callable[[], None]) -> None:
    """Revalidate the cached names once a period, spread over it. `on_change` must drop the caches. Never returns."""
    while True:
        await recheck(uids, period_s, on_change)


async def recheck(uids: Uids, period_s: float, on_change: Callable[[], None]) -> None:
    """Revalidate all cached names once, over one period. A chunk that cannot be read is checked in the next round."""
    overflows = uids.overflows
    count = uids.chunks
    pause_s = period_s / (count + 1)
    cached = uids.cached()
    for _ in range(count):
        await trio.sleep(pause_s)
        cells = next(cached, None)
        if cells is None:  # the caches were dropped
            continue
        try:
            changed = await uids.changed(cells)
        except StoreError as error:
            log.debug("uids.recheck_failed", error=str(error))
            continue
        if changed:
            names = " ".join(row.decode("latin-1") if cells.column.startswith(b"id:") else row.hex() for row in changed)
            log.info("uids.changed_elsewhere", count=len(changed), names=names[:200])
            on_change()
            return
    await trio.sleep(pause_s)
    if uids.overflows != overflows:  # names evicted from the cache were not checked, but series may use them
        on_change()


DAY_MS = 86_400_000
WINDOWS = (1, 7, 30)  # days


class UidUsage(NamedTuple):
    """The use of one kind of UIDs."""

    kind: Kind
    capacity: int  # UIDs that can exist
    used: int  # the highest assigned one; of random UIDs, how many have a name
    named: int  # UIDs with a name
    first_ms: int | None  # write time of the oldest name
    recent: dict[int, int]  # names written in the last days, by days; renamed ones count again
    now_ms: int

    @property
    def left(self) -> int:
        """UIDs that are left."""
        return max(self.capacity - self.used, 0)

    @property
    def per_day(self) -> float:
        """New names per day: the higher rate of last week and last month. For a younger table, its age counts, at least
        one day."""
        age = max((self.now_ms - self.first_ms) / DAY_MS, 1.0) if self.first_ms is not None else 1.0
        return max(self.recent[days] / min(days, age) for days in WINDOWS[1:])

    @property
    def days_left(self) -> float | None:
        """Days until UIDs are exhausted at that rate; None for a rate of 0."""
        return self.left / self.per_day if self.per_day else None


async def usages(
    store: Store,
    table: str,
    widths: Widths,
    now_ms: int,
    *,
    random_metrics: bool = False,
    on_rows: Callable[[int], None] = lambda _: None,
) -> list[UidUsage]:
    """Return the use of every kind. Raise StoreError, and CorruptRow for a damaged counter."""
    columns = {name_column(kind): kind for kind in Kind}
    named = dict.fromkeys(Kind, 0)
    first: dict[Kind, int] = {}
    recent = {kind: dict.fromkeys(WINDOWS, 0) for kind in Kind}
    async for rows in scan(store, table, columns=list(columns)):
        for row in rows:
            for cell in row.cells:
                kind = columns[cell.column]
                named[kind] += 1
                first[kind] = min(cell.time_ms, first.get(kind, cell.time_ms))
                for days in WINDOWS:
                    recent[kind][days] += cell.time_ms > now_ms - days * DAY_MS
        on_rows(len(rows))
    counters = await _counters(store, table)
    return [
        UidUsage(
            kind,
            capacity(widths.of(kind)),
            named[kind] if random_metrics and kind is Kind.METRIC else counters[kind],
            named[kind],
            first.get(kind),
            recent[kind],
            now_ms,
        )
        for kind in Kind
    ]


async def _counters(store: Store, table: str) -> dict[Kind, int]:
    cells = (await store.get(table, [COUNTER_ROW])).get(COUNTER_ROW, [])
    found = {cell.column: cell.value for cell in cells}
    try:
        return {kind: decode_counter(found.get(id_column(kind), bytes(8))) for kind in Kind}
    except ValueError as exc:
        raise CorruptRow(f"UID table {table}: {exc}: run tsd uid fsck") from exc
