"""Series never seen come in alike by the compiled way in and by the plain one: the same ones, with the same UIDs."""

from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.ingest.parts import make_store
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import NameRules
from tsd.ingest.intake import absorb
from tsd.ingest.limits import NewNameLimit, OriginAdmission
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import HAS_LOOP, SeriesTable
from tsd.store import scan
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.uids import Uids

pytestmark = pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only one way is there")

NAMES = st.sampled_from(["a", "b", "host", "\u00e4", "t1", "t4", "a-_./9", "x:y", "\u00d7", "long" * 40])
WORDS = st.one_of(
    st.tuples(NAMES, NAMES).map("=".join),
    st.sampled_from(["", "", "a", "a=", "=a", "a=b=c", "a\tb=c", "\u00aa=\u00ff"]),
)
TEXTS = st.tuples(NAMES, st.lists(WORDS, min_size=1, max_size=10).map(" ".join))
BLOCKS = st.lists(st.lists(TEXTS, max_size=12), max_size=5)
LAYOUTS = st.builds(
    KeyLayout,
    st.builds(Widths, metric=st.integers(1, 8), tagk=st.integers(1, 4), tagv=st.integers(1, 4)),
    salt_width=st.integers(0, 8),
    salt_buckets=st.sampled_from([1, 20, 300, 1 << 40]),
)
CREATES = st.sampled_from([AutoCreate(True, True, True), AutoCreate(False, True, True), AutoCreate(True, False, True)])

NARROW, ALL = KeyLayout(Widths(metric=1, tagk=1, tagv=1)), AutoCreate(True, True, True)


class Way:
    """One way in, on a store of its own."""

    def __init__(self, store: Any, layout: KeyLayout, creates: AutoCreate, *, compiled: bool, most: int) -> None:
        self.store = store
        self.uids = Uids(store, "tsdb-uid", layout.widths)
        self.names = UidResolver(self.uids, layout, creates, compiled=compiled)
        self.open_window = OpenWindow(SeriesTable(compiled=compiled), NameRules(b":"))
        self.name_limit = NewNameLimit(self.open_window.table)
        self.name_limit.set_limits(max_series=most, names_per_minute=0)

    async def take(self, block: bytes) -> tuple[object, ...]:
        absorbed = await absorb(self.open_window, self.names, block, OriginAdmission(self.name_limit, None))
        return absorbed.accepted, absorbed.kept, [(at, str(error)) for at, error in absorbed.rejects]

    async def outcome(self) -> tuple[object, ...]:
        table = self.open_window.table
        series = [(table.text(number), table.key_of(number)) for number in table.texts.numbers()]
        stored = [row async for rows in scan(self.store, "tsdb-uid") for row in rows]
        found = [(text in table) for text, _ in series if text is not None]
        points = [column.tolist() for column in self.open_window.take()]
        return series, stored, found, self.name_limit.new_series, points


def lines(texts: list[tuple[str, str]]) -> bytes:
    return "".join(f"put {metric} 1356998400 {at} {tags}\n" for at, (metric, tags) in enumerate(texts)).encode(
        "latin-1"
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@example([[("a", "a=a \u00aa=\u00ff")], [("a", "a=a"), ("a", "a=b"), ("a", "\u00aa=\u00ff")]], NARROW, ALL, 3)
@example([[("a", "a=a \u00aa=\u00ff")], [("a", ""), ("a", "a=b"), ("a", "\u00aa=\u00ff")]], NARROW, ALL, 0)
@given(BLOCKS, LAYOUTS, CREATES, st.sampled_from([0, 0, 3]))
def test_unknown_series_are_equal_in_both_parsers(
    blocks: list[list[tuple[str, str]]], layout: KeyLayout, creates: AutoCreate, most: int
) -> None:
    async def both() -> None:
        stores = [await make_store(), await make_store()]
        plain, looped = (
            Way(store, layout, creates, compiled=compiled, most=most)
            for store, compiled in zip(stores, (False, True), strict=True)
        )
        for way in (plain, looped):
            await way.uids.find_or_assign(Kind.METRIC, [b"a"])
            await way.uids.find_or_assign(Kind.TAGK, [b"host", b"a"])
        for block in blocks:
            assert await plain.take(lines(block)) == await looped.take(lines(block))
        assert await plain.outcome() == await looped.outcome()

    trio.run(both)


async def test_loop_inserts_series_of_known_names_up_to_the_cap() -> None:
    way = Way(await make_store(), KeyLayout(), AutoCreate(True, True, True), compiled=True, most=150)
    await way.take(lines([("m", f"host=h{number}") for number in range(100)]))
    again = await way.take(lines([("m", f"host=h{number} a=h0") for number in range(100)]))
    assert again[0] == 50
    assert len(way.open_window.table) == way.name_limit.new_series == 150
    way.open_window.table.evict(1, held_since_s=1)
    assert (await way.take(lines([("m", "a=h0 host=h7")])))[0] == 1
    assert way.open_window.table.generations(way.open_window.take().series).tolist()[-1] == 151


async def test_refused_name_is_looked_up_once_per_block() -> None:
    way = Way(await make_store(), KeyLayout(), AutoCreate(True, True, False), compiled=True, most=0)
    await way.take(lines([("m", "host=a")]))
    before = way.uids.statistics()[Kind.TAGV].misses
    accepted, _, rejects = await way.take(lines([("m", "host=b"), ("m", "host=b a=c"), ("m", "host=b")]))
    assert (accepted, len(rejects)) == (0, 3)
    assert way.uids.statistics()[Kind.TAGV].misses == before + 2  # names
