"""The UID table, looked at and changed where it is stored: what `tsd uid` does but look-ups and assignment.

Daemons may go on assigning meanwhile: a cell is written over or deleted only if it still is what was read.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tsd.codec.fsck_uids import UidCell, UidCheck, UidFinding, check_uids
from tsd.codec.uid import COUNTER_ROW, Kind, Widths
from tsd.errors import NoSuchName, TsdError
from tsd.store import Cell, Put, Store, scan

# A cell that is younger may be half of something that a daemon, or a rename, is about to finish. With HBase away, a
# daemon may take minutes from one step of an assignment to the next.
SETTLED_MS = 600_000

Place = tuple[bytes, bytes]  # row, column


class Changed(TsdError):
    """Somebody else changed the table at the same time."""


class Mending(NamedTuple):
    """What was done to the table."""

    written: int
    deleted: int
    raised: Mapping[Kind, int]  # by how much
    left: list[str]  # what was to be done and was not


class UidFsck:
    """Looks at a whole UID table, and mends it."""

    def __init__(
        self, store: Store, table: str, widths: Widths, now_ms: Callable[[], int], *, random_metrics: bool = False
    ) -> None:
        self._store = store
        self._table = table
        self._widths = widths
        self._now_ms = now_ms
        self._random_metrics = random_metrics

    async def check(self, on_rows: Callable[[int], None] = lambda _: None) -> UidCheck:
        """What is wrong; nothing is mended. `on_rows` hears of rows as they are read."""
        return (await self._look(on_rows, fix=False, delete_unknown=False))[0]

    async def mend(
        self, on_rows: Callable[[int], None] = lambda _: None, *, delete_unknown: bool = False
    ) -> tuple[UidCheck, Mending]:
        """What was wrong, and what was done about it."""
        check, cells = await self._look(on_rows, fix=True, delete_unknown=delete_unknown)
        left: list[str] = []
        written = deleted = 0
        for put in check.puts:
            if await self._write(put, cells, left):
                written += 1
        if not left:  # deletes rely on the puts
            for place in check.deletes:
                deleted += await self._delete(place, cells, left)
        for kind, by in check.raises.items():
            await self._store.increment(self._table, COUNTER_ROW, kind.id_column, by)
        return check, Mending(written, deleted, check.raises, left)

    async def _look(
        self, on_rows: Callable[[int], None], *, fix: bool, delete_unknown: bool
    ) -> tuple[UidCheck, Mapping[Place, Cell]]:
        """A scan is not of one moment: a name that is assigned meanwhile may show by half. So what the first look
        finds wrong counts only if a second one finds it too."""

        def judge(cells: Mapping[Place, Cell]) -> UidCheck:
            return check_uids(
                (UidCell(*place, cell.value) for place, cell in cells.items()),
                self._widths,
                fix=fix,
                delete_unknown=delete_unknown,
                random_metrics=self._random_metrics,
            )

        cells = await self._read(on_rows)
        first = judge(cells)
        if not first.findings:
            return first, cells
        cells = await self._read(on_rows)
        second = judge(cells)
        seen: set[UidFinding] = set(first.findings)
        return second._replace(findings=[one for one in second.findings if one.of_counter or one in seen]), cells

    async def _read(self, on_rows: Callable[[int], None]) -> dict[Place, Cell]:
        cells: dict[Place, Cell] = {}
        async for rows in scan(self._store, self._table):
            cells.update(((row.key, cell.column), cell) for row in rows for cell in row.cells)
            on_rows(len(rows))
        # The counters stand in the first row. Read last, none is behind a UID that was handed out meanwhile.
        counters = await self._store.get(self._table, [COUNTER_ROW])
        cells.update(((COUNTER_ROW, cell.column), cell) for cell in counters.get(COUNTER_ROW, ()))
        return cells

    async def _write(self, put: UidCell, cells: Mapping[Place, Cell], left: list[str]) -> bool:
        before = cells.get((put.row, put.column))
        if before is not None and self._is_young(before):
            left.append(f"{_show(put.row, put.column)} is too young to be written over: somebody may be at work there")
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
            left.append(f"{_show(*place)} is too young to be deleted: somebody may be at work there")
            return False
        await self._store.delete(self._table, {place[0]: [place[1]]}, up_to_ms=cell.time_ms)
        return True

    def _is_young(self, cell: Cell) -> bool:
        return self._now_ms() - cell.time_ms < SETTLED_MS


async def rename(store: Store, table: str, kind: Kind, old: bytes, new: bytes) -> bytes:
    """Call the UID of `old` `new`; the UID. Raises NoSuchName, Changed, TsdError where `new` has a UID, StoreError.

    As OpenTSDB: first the UID's name, then the new name, then the old name goes. Dying in between leaves what `uid
    fsck` mends or the same rename completes.
    """
    rows = await store.get(table, [old, new], columns=[kind.id_column])
    if old not in rows:
        raise NoSuchName(f"No such name for '{kind.value}': '{_text(old)}'")
    uid = rows[old][0].value
    taken = rows[new][0].value if new in rows else None
    if old == new or taken not in (None, uid):
        raise TsdError(f"An UID with name {_text(new)} for {kind.value} already exists")
    names = await store.get(table, [uid], columns=[kind.name_column])
    name = names[uid][0].value if uid in names else None
    if name not in (None, old, new):
        raise TsdError(f"the name of {uid.hex()} is {_text(name or b'')}, not {_text(old)}: run tsd uid fsck first")
    if name != new and not await store.check_and_put(table, uid, kind.name_column, new, expected=name):
        raise Changed(f"{uid.hex()} was given another name meanwhile")
    if not await _publish(store, table, kind, new, uid):
        await store.check_and_put(table, uid, kind.name_column, old, expected=new)
        raise Changed(f"{_text(new)} was given a UID meanwhile")
    await store.delete(table, {old: [kind.id_column]}, up_to_ms=rows[old][0].time_ms)
    return uid


async def _publish(store: Store, table: str, kind: Kind, name: bytes, uid: bytes) -> bool:
    """Write name → UID unless the name has another; whether it now stands there."""
    [made] = await store.create(table, [Put(name, kind.id_column, uid)])
    if made:
        return True
    rows = await store.get(table, [name], columns=[kind.id_column])
    return name in rows and rows[name][0].value == uid


async def delete(store: Store, table: str, kind: Kind, name: bytes) -> bytes:
    """Take a name and its UID out of the table; the UID. Rows of it stay, and have no name. Raises NoSuchName,
    StoreError.

    The name goes first, so that nobody who dies in between, or writes meanwhile, finds a UID that cannot be read.
    """
    rows = await store.get(table, [name], columns=[kind.id_column])
    if name not in rows:
        raise NoSuchName(f"No such name for '{kind.value}': '{_text(name)}'")
    uid = rows[name][0].value
    columns = [kind.name_column, kind.meta_column]
    described = (await store.get(table, [uid], columns=columns)).get(uid, [])
    await store.delete(table, {name: [kind.id_column]}, up_to_ms=rows[name][0].time_ms)
    # Of several names of one UID (`uid fsck` finds them) only one is the UID's own.
    if not any(cell.column == kind.name_column and cell.value != name for cell in described):
        for cell in described:
            await store.delete(table, {uid: [cell.column]}, up_to_ms=cell.time_ms)
    return uid


def _show(row: bytes, column: bytes) -> str:
    shown = _text(row) if column.startswith(b"id:") else row.hex()
    return f"{shown} {column.decode('latin-1')}"


def _text(name: bytes) -> str:
    return name.decode("latin-1")
