"""What the tables hold: points by their series' names, read through the store, not through the query engine."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import numpy as np

from tsd.assembly import make_uids
from tsd.codec.checks import Trouble
from tsd.codec.merge import MergeRules, merge
from tsd.codec.row import data_cells, problems
from tsd.codec.rowkey import after, salts, split_key
from tsd.codec.uid import COUNTER_ROW, Kind, decode_counter, decode_uid, encode_counter
from tsd.config import Config, layout
from tsd.errors import CorruptRow, NoSuchName
from tsd.store import Row, Store, scan
from tsd.torture.lines import Numbers, Series, Values
from tsd.uids import Uids

NEWEST = MergeRules(fix_duplicates=True)
REPEATS = (Trouble.REPEATED, Trouble.CONFLICT)  # a replay writes points again, in cells of another length


class StoredRow(NamedTuple):
    """The points of one hour of a series."""

    series: Series
    times: Numbers  # as the lines have them: in seconds, or in ms
    values: Values


class Look(NamedTuple):
    """A part of what is there."""

    rows: list[StoredRow]
    unsound: list[str]  # rows that are not as they should be


async def stored_rows(
    store: Store, config: Config, metrics: Sequence[str] | None, *, thorough: bool = True
) -> AsyncIterator[Look]:
    """All rows of these metrics, or of all there are, in parts. `thorough`: every cell is held against the format."""
    uids = make_uids(config, store)
    for start, stop in await _stretches(uids, config, metrics):
        async for page in scan(store, config.data_table, start, stop):
            yield await _look(uids, config, page, thorough=thorough)


async def _stretches(uids: Uids, config: Config, metrics: Sequence[str] | None) -> list[tuple[bytes, bytes | None]]:
    """Where the rows of metrics are."""
    if metrics is None:
        return [(b"", None)]
    found = await uids.find(Kind.METRIC, [metric.encode() for metric in metrics])
    keys = [salt + uid for salt in salts(layout(config)) for uid in found.values() if isinstance(uid, bytes)]
    return [(key, after(key)) for key in sorted(keys)]


async def _look(uids: Uids, config: Config, page: Sequence[Row], *, thorough: bool) -> Look:
    form = layout(config)
    found = Look([], [])
    split = [(row, split_key(form, row.key)) for row in page]
    metrics = await uids.names(Kind.METRIC, {key.series.metric for _, key in split})
    tagks = await uids.names(Kind.TAGK, {tagk for _, key in split for tagk, _ in key.series.pairs})
    tagvs = await uids.names(Kind.TAGV, {tagv for _, key in split for _, tagv in key.series.pairs})
    for row, key in split:
        cells = data_cells(row.cells)
        if thorough:
            wrong = [one for one in problems(row.key, cells, form) if one.trouble not in REPEATS]
            found.unsound.extend(f"row {row.key.hex()}: {one.trouble.value}: {one.detail}" for one in wrong)
        try:
            names = [metrics[key.series.metric]]
            for tagk, tagv in key.series.pairs:
                names += tagks[tagk], tagvs[tagv]
            points = merge(row.key, cells, NEWEST).points
            series = _named(names)
        except (CorruptRow, NoSuchName) as error:
            found.unsound.append(f"row {row.key.hex()}: {error}")
            continue
        times = [key.base * 1000 + p.offset_ms if p.in_ms else key.base + p.offset_ms // 1000 for p in points]
        values = [p.number for p in points]
        found.rows.append(StoredRow(series, np.array(times, np.int64), np.array(values, np.float64)))
    return found


def _named(names: Sequence[object]) -> Series:
    """A series by its metric, and its tags' names and values in turn; raises NoSuchName for a UID without name."""
    metric, *tags = (_text(name) for name in names)
    return Series(metric, tuple(sorted(zip(tags[::2], tags[1::2], strict=True))))


def _text(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("latin-1")
    raise name if isinstance(name, NoSuchName) else TypeError(name)


async def unsound_names(store: Store, config: Config) -> list[str]:
    """What is wrong with the UID table: each name has one UID and leads there and back, no two share one, and no
    counter is behind.

    A crash between the two halves of an assignment leaves a UID with the name of a series that got another one since:
    it is used by nobody, and so is a number that was counted and not given away.
    """
    columns: dict[bytes, dict[bytes, bytes]] = {}
    async for page in scan(store, config.uid_table):
        for row in page:
            for cell in row.cells:
                columns.setdefault(cell.column, {})[row.key] = cell.value
    wrong = []
    for kind in Kind:
        there, back = columns.get(kind.id_column, {}), columns.get(kind.name_column, {})
        counter = decode_counter(there.pop(COUNTER_ROW, encode_counter(0)))
        wrong += [f"{kind.value} {name!r} has UID {uid.hex()}, which is of {back.get(uid)!r}"
                  for name, uid in there.items() if back.get(uid) != name]  # fmt: skip
        if len(set(there.values())) != len(there):
            wrong.append(f"{kind.value}: names share UIDs")
        if not config.random_metrics or kind is not Kind.METRIC:
            wrong += [
                f"{kind.value}: the counter {counter} is behind {uid.hex()}"
                for uid in back
                if decode_uid(uid) > counter
            ]
    return wrong
