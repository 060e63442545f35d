"""Names into another UID table: the same UIDs, or nothing."""

import pytest

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import COUNTER_ROW, encode_counter, id_column, meta_column
from tsd.errors import CorruptRow
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.copy import NamesDiffer, TableRef, copy_names
from tsd.tables.opentsdb.uids import Uids

UIDS = "tsdb-uid"


async def place(*names: bytes) -> TableRef:
    """A UID table with metrics of these names."""
    store = MemoryStore(lambda: 5)
    await store.create_tables([Table(UIDS, (Family(b"id"), Family(b"name")))])
    await Uids(store, UIDS, Widths()).find_or_assign(Kind.METRIC, names)
    return TableRef(store, UIDS)


async def uids(at: TableRef, *names: bytes) -> list[object]:
    """Of metrics, new ones as well."""
    found = await Uids(at.store, UIDS, Widths()).find_or_assign(Kind.METRIC, names)
    return [found[name] for name in names]


async def test_names_keep_their_uids() -> None:
    source, target = await place(b"a", b"b"), await place()
    copied = await copy_names(source, target)
    assert (copied.cells, copied.put, copied.hidden) == (4, 4, 0)
    assert await uids(target, b"b", b"a", b"new") == [b"\0\0\2", b"\0\0\1", b"\0\0\3"]
    assert (await copy_names(source, target)).put == 0


@pytest.mark.parametrize("theirs", [[b"b"], [b"x", b"a"], [b"b", b"a"]])
async def test_target_with_conflicting_names_is_refused(theirs: list[bytes]) -> None:
    source, target = await place(b"a", b"b", b"c"), await place(*theirs)
    before = await target.store.page(UIDS, b"", None, limit=100)
    with pytest.raises(NamesDiffer, match=r"\bmetrics\b.*(\ba\b|\bb\b|\[0, 0, 1\])"):
        await copy_names(source, target)
    assert await target.store.page(UIDS, b"", None, limit=100) == before


async def test_higher_counters_of_the_target_stay() -> None:
    source, target = await place(b"a"), await place(b"a", b"b", b"c")
    await copy_names(source, target)
    assert await uids(target, b"c", b"new") == [b"\0\0\3", b"\0\0\4"]


async def test_metadata_of_names_is_copied_and_may_differ() -> None:
    source, target = await place(b"a"), await place(b"a")
    column = meta_column(Kind.METRIC)
    for at, value, time_ms in ((source, b"{1}", 9), (target, b"{0}", 8)):
        await at.store.put(UIDS, [Put(b"\0\0\1", column, value)], time_ms=time_ms)
    assert (await copy_names(source, target)).put == 1
    [cell] = (await target.store.get(UIDS, [b"\0\0\1"], columns=[column]))[b"\0\0\1"]
    assert (cell.value, cell.time_ms) == (b"{1}", 9)


async def test_invalid_counter_raises() -> None:
    source, target = await place(b"a"), await place()
    await source.store.put(UIDS, [Put(COUNTER_ROW, id_column(Kind.TAGK), b"\7")])
    with pytest.raises(CorruptRow, match=r"\b8\b.*\b07\b"):
        await copy_names(source, target)
    await source.store.put(UIDS, [Put(COUNTER_ROW, id_column(Kind.TAGK), encode_counter(7))])
    assert (await copy_names(source, target)).put == 2
