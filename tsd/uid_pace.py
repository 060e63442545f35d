"""How many UIDs are used, at what pace, and how long the rest will do: from the write times in the UID table."""

from collections.abc import Callable
from typing import NamedTuple

from tsd.codec.uid import COUNTER_ROW, Kind, Widths, capacity, decode_counter
from tsd.errors import CorruptRow
from tsd.store import Store, scan

DAY_MS = 86_400_000
WINDOWS = (1, 7, 30)  # days


class Usage(NamedTuple):
    """One kind of UIDs at a moment."""

    kind: Kind
    capacity: int  # how many there can be
    used: int  # highest one handed out; of random ones, how many have a name
    named: int  # how many have a name
    first_ms: int | None  # when the oldest of those names was written
    recent: dict[int, int]  # of the last so many days, how many names were written; a renamed one counts anew
    now_ms: int

    @property
    def left(self) -> int:
        """How many can still be handed out."""
        return max(self.capacity - self.used, 0)

    @property
    def per_day(self) -> float:
        """Pace of the last week or of the last month, whichever is faster. A table that is younger counts for its
        age, one day at least."""
        age = max((self.now_ms - self.first_ms) / DAY_MS, 1.0) if self.first_ms is not None else 1.0
        return max(self.recent[days] / min(days, age) for days in WINDOWS[1:])

    @property
    def days_left(self) -> float | None:
        """How long the rest will do at that pace; None where nothing is used up."""
        return self.left / self.per_day if self.per_day else None


async def usages(
    store: Store,
    table: str,
    widths: Widths,
    now_ms: int,
    *,
    random_metrics: bool = False,
    on_rows: Callable[[int], None] = lambda _: None,
) -> list[Usage]:
    """Every kind's numbers. Raises StoreError, and CorruptRow where a counter is none."""
    columns = {kind.name_column: kind for kind in Kind}
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
        Usage(
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
        return {kind: decode_counter(found.get(kind.id_column, bytes(8))) for kind in Kind}
    except ValueError as exc:
        raise CorruptRow(f"UID table {table}: {exc}: run tsd uid fsck") from exc
