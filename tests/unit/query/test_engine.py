"""The query engine beyond what tests/conformance compares with OpenTSDB."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from tests import layouts
from tests.unit.query.engines import DATA, FEW, NOW_MS, START_S, UID, QueryEnvironment, make_query, values
from tsd.codec.metadata import Annotation
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.errors import BadQuery, StoreDown
from tsd.query.assemble import start_ms
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.registry import QueryRegistry
from tsd.store import Put
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadRules, ReadTable
from tsd.tables.opentsdb.selection import FilterRules

pytestmark = layouts.on_all

HOSTS = [f"web{host:02d}" for host in range(20)]
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=4)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_groups_are_in_order_of_their_uids(layout: KeyLayout) -> None:
    env = await QueryEnvironment.build(FEW, layout=layout)
    groups = await env.groups("sum:sys.cpu{dc=*}")
    assert [dict(group.tags) for group in groups] == [{"dc": "sjc"}, {"dc": "lga"}]
    assert [list(group.aggregate_tags) for group in groups] == [["host"], ["host"]]
    assert values(groups[0])[0] == sum(host * 100 for host in range(0, 20, 2))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
@pytest.mark.parametrize(
    "m",
    [
        "sum:sys.cpu{host=web03}",
        "sum:sys.cpu{host=web03|web04}{dc=*}",
        "none:sys.cpu{}{host=wildcard(web1*)}",
        "sum:sys.cpu{}{host=not_literal_or(web01),dc=lga}",
        "sum:sys.cpu{host=web03,dc=sjc}",
        "sum:explicit_tags:sys.cpu{host=web03,dc=*}",
        "sum:explicit_tags:sys.cpu{host=regexp(web0[3-5])}",
        "none:sys.cpu{}{host=regexp(b1[37]$)}",
        "none:sys.cpu{}{host=iwildcard(*B07)}",
        "none:sys.cpu{}{host=iliteral_or(WEB03|wEb11)}",
        "none:sys.cpu{}{host=regexp(web0.),host=not_literal_or(web01|web02|web03|web04|web05|web06|web07|web08)}",
        "none:sys.cpu{}{dc=not_iliteral_or(LGA),host=wildcard(*3)}",
    ],
)
async def test_index_changes_no_answer(m: str, layout: KeyLayout) -> None:
    lines = [*FEW, *(f"sys.cpu {START_S + hour * 3600 + 5} 1 host=web03 dc=lga" for hour in range(6))]
    plain = await QueryEnvironment.build(lines, layout=layout)
    indexed = await QueryEnvironment.build(lines, layout=layout, indexed=True)
    query = replace(make_query(m), end_ms=(START_S + 6 * 3600) * 1000)
    wanted, found = await plain.engine.run(query), await indexed.engine.run(query)
    assert [(dict(g.tags), values(g)) for g in found.subs[0].groups] == [
        (dict(g.tags), values(g)) for g in wanted.subs[0].groups
    ]


@layouts.opentsdb_only
@pytest.mark.parametrize(("m", "in_thread"), [("sum:1h-avg:sys.cpu", False), ("none:10s-p95:sys.cpu", True)])
async def test_what_buckets_hold_decides_about_a_thread(
    m: str, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"sys.cpu {START_S + at * 10} {at} host=web{host:02d}" for host in range(20) for at in range(360)]
    env = await QueryEnvironment.build(lines)
    query = replace(make_query(m), end_ms=(START_S + 3599) * 1000)
    threads = []
    run = env.engine.workers.run

    async def counted(work: Callable[[], object]) -> object:
        threads.append(work)
        return await run(work)

    monkeypatch.setattr(env.engine.workers, "run", counted)
    answer = await env.engine.run(query)
    assert answer.subs[0].stats["dpsPreFilter"] == len(lines)
    assert bool(threads) is in_thread


@layouts.opentsdb_only
async def test_index_limits_reads_to_matching_rows() -> None:
    env = await QueryEnvironment.build(FEW, indexed=True)
    answer = await env.run("sum:sys.cpu{host=web07}")
    assert answer.subs[0].stats["rowsPreFilter"] == 1
    scanned = await (await QueryEnvironment.build(FEW)).run("sum:sys.cpu{host=web07}")
    assert scanned.subs[0].stats["rowsPreFilter"] == 20
    assert values(answer.subs[0].groups[0]) == values(scanned.subs[0].groups[0])


@layouts.opentsdb_only
@pytest.mark.parametrize("test", ["regexp(b07$)", "iliteral_or(WEB07)", "wildcard(*07)", "iwildcard(*B07)"])
async def test_index_limits_reads_for_filters_by_name(test: str) -> None:
    env = await QueryEnvironment.build(FEW, indexed=True)
    for _ in range(2):  # the second time from memory
        answer = await env.run(f"sum:sys.cpu{{}}{{host={test}}}")
        assert answer.subs[0].stats["rowsPreFilter"] == 1
        assert values(answer.subs[0].groups[0])[0] == 700


@layouts.opentsdb_only
async def test_new_series_match_a_filter_that_was_used_before() -> None:
    env = await QueryEnvironment.build(FEW, indexed=True)
    for count in range(1, 4):
        answer = await env.run("none:sys.cpu{}{host=wildcard(*07)}")
        assert len(answer.subs[0].groups) == count
        await env.put([f"sys.cpu {START_S} 1 host=new{count}07 dc=sjc"])


@layouts.opentsdb_only
async def test_tag_value_without_a_name_is_reported_each_time() -> None:
    env = await QueryEnvironment.build(FEW, indexed=True)
    uid = (await env.uids.find(Kind.TAGV, [b"web07"]))[b"web07"]
    assert isinstance(uid, bytes)
    await env.store.delete(UID, {uid: [b"name:tagv"]}, up_to_ms=None)
    env.uids.drop_caches()
    for _ in range(2):
        answer = await env.run("none:sys.cpu{}{host=wildcard(*7)}")
        assert [dict(group.tags)["host"] for group in answer.subs[0].groups] == ["web17"]
        assert answer.warnings == [f"UID {uid.hex().upper()} of a tag has no name"]


@layouts.opentsdb_only
async def test_incomplete_index_is_not_used() -> None:
    env = await QueryEnvironment.build(FEW, indexed=True)
    await env.index.outdate()
    answer = await env.run("sum:sys.cpu{host=web07}")
    assert answer.subs[0].stats["rowsPreFilter"] == 20
    assert await env.index.rebuild(DATA) == 20
    assert (await env.run("sum:sys.cpu{host=web07}")).subs[0].stats["rowsPreFilter"] == 1


@pytest.mark.difference(
    "unwritten-points",
    topic="queries",
    theirs="Points that wait to be written are not found",
    ours="Points of the query's metric are written first",
)
async def test_open_window_is_flushed_before_reading() -> None:
    env = await QueryEnvironment.build(FEW)
    await env.run("sum:sys.cpu", "max:sys.cpu{host=*}")
    assert env.flushed == [b"sys.cpu"]


@pytest.mark.parametrize(
    ("m", "message"),
    [
        ("sum:nope", "No such name for 'metrics': 'nope'"),
        ("sum:nope{nope=nope}", "No such name for 'metrics': 'nope'"),
        ("sum:sys.cpu{nope=nope}", "No such name for 'tagk': 'nope'"),
        ("sum:sys.cpu{host=nope}", "No such name for 'tagv': 'nope'"),
        ("sum:sys.cpu{host=web01|nope}", "No such name for 'tagv': 'nope'"),
    ],
)
async def test_unknown_names_are_refused(m: str, message: str) -> None:
    env = await QueryEnvironment.build(FEW)
    with pytest.raises(BadQuery, match=message):
        await env.run(m)


async def test_query_list_shows_results() -> None:
    env = await QueryEnvironment.build(FEW)
    with QueryRegistry(lambda: NOW_MS).register(make_query("sum:sys.cpu"), "127.0.0.1:5", {}) as running:
        await env.run("sum:sys.cpu{host=web01}", "max:sys.cpu", running=running)
    figures = [running.stats[name] for name in ("rowsPreFilter", "rowsPostFilter", "dpsPostFilter", "emittedDPs")]
    assert figures == [40, 21, 105, 10]


async def test_query_list_counts_only_points_that_are_shown() -> None:
    """OpenTSDB counts them when it writes them. Hours are read whole."""
    env = await QueryEnvironment.build(FEW)
    times = {"start_ms": (START_S + 10) * 1000, "end_ms": (START_S + 30) * 1000}
    for m, count in (("sum:sys.cpu{host=web01}", 3), ("none:sys.cpu", 60), ("sum:10s-avg-zero:sys.cpu", 3)):
        with QueryRegistry(lambda: NOW_MS).register(make_query(m), "127.0.0.1:5", {}) as running:
            await env.run(m, running=running, **times)
        assert running.stats["emittedDPs"] == count, m


@pytest.mark.difference(
    "early-and-late-ranges",
    topic="queries",
    theirs="A range that begins before 1970-02-20 or ends after 2106-02-07 finds nothing, or groups without points",
    ours="It finds the points that exist",
)
@pytest.mark.parametrize("m", ["sum:sys.cpu", "sum:1n-sum:sys.cpu", "sum:explicit_tags:sys.cpu{host=*,dc=*}"])
async def test_range_from_1970_to_after_2106(m: str) -> None:
    env = await QueryEnvironment.build(FEW)
    wanted = [values(group) for group in await env.groups(m.replace("1n", "30d"))]
    for begin, end in (
        (1000, NOW_MS),
        (4_294_968_000, NOW_MS),
        (1000, 4_294_967_295_000),
        (0, 9_999_999_999_000),
    ):
        answer = await env.engine.run(replace(make_query(m), start_ms=begin, end_ms=end))
        assert all(sum(values(group).values()) for group in answer.subs[0].groups)
        assert len(answer.subs[0].groups) == len(wanted)


@pytest.mark.parametrize("switch", [False, True])
async def test_buckets_may_exceed_all_times(switch: bool) -> None:
    """Regression: calendar steps past the year 9999 failed, where OpenTSDB has one bucket."""
    env = await QueryEnvironment.build(FEW)
    for span in ("999999999dc", "2147483647wc", "200000nc", "9000yc", "2147483647hc", f"{(1 << 63) - 1}ms"):
        for fill in ("", "-zero"):
            query = make_query(f"sum:{span}-sum{fill}:sys.cpu{{host=web01}}", corrected=switch)
            [group] = (await env.engine.run(query)).subs[0].groups
            left_out = span.endswith("wc") and not switch  # the week began before what is read
            assert fill or sum(values(group).values()) == (0 if left_out else 510), span


@layouts.opentsdb_only
async def test_unknown_values_may_be_skipped() -> None:
    env = await QueryEnvironment.build(FEW, rules=ReadRules(FilterRules(skip_unresolved_tagvs=True)))
    assert len(await env.groups("sum:sys.cpu{host=web01|nope}")) == 1
    assert await env.groups("sum:sys.cpu{host=nope}") == []


@layouts.opentsdb_only
@pytest.mark.difference(
    "filters-after-start",
    topic="queries",
    theirs="Filters on names may lose series in the first answers after a start",
    ours="Names are resolved before a series is filtered",
)
async def test_many_literals_are_compared_by_name() -> None:
    env = await QueryEnvironment.build(FEW, rules=ReadRules(FilterRules(expansion_limit=1)))
    groups = await env.groups("sum:sys.cpu{host=web01|web02|nope}")
    assert [group.tags["host"] for group in groups] == ["web01", "web02"]


@layouts.opentsdb_only
@pytest.mark.difference(
    "literals-on-one-key",
    topic="corrected",
    theirs="Literals on one tag name are united, or those before another filter are lost",
    ours="all filters must pass",
)
@pytest.mark.parametrize(
    ("filters", "ours", "corrected"),
    [
        ("{}{host=literal_or(web01),host=literal_or(web02)}", ["web01", "web02"], []),
        ("{}{dc=literal_or(lga),dc=wildcard(*)}", HOSTS, HOSTS[1::2]),
    ],
)  # fmt: skip
async def test_literals_on_one_key_combine(filters: str, ours: list[str], corrected: list[str]) -> None:
    """OpenTSDB unites them on the lowest key and forgets them on others. Corrected: all filters must pass."""
    env = await QueryEnvironment.build(FEW)
    wide = filters.replace("{}{", "{}{host=wildcard(*),") if "dc=" in filters else filters
    for switch, wanted in ((False, ours), (True, corrected)):
        groups = await env.groups(f"none:sys.cpu{wide}", corrected=switch)
        assert [group.tags["host"] for group in groups] == wanted


async def test_not_key_matches_series_without_the_tag() -> None:
    env = await QueryEnvironment.build([*FEW, f"sys.cpu {START_S} 7 host=lone"])
    groups = await env.groups("none:sys.cpu{}{dc=not_key()}", corrected=True)
    assert [dict(group.tags) for group in groups] == [{"host": "lone"}]


@pytest.mark.difference("not-key")
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("others", ["dc=lga", "dc=wildcard(*)", "dc=regexp(.)", "dc=lga,dc=wildcard(l*)"])
async def test_contradicting_filters_match_nothing(others: str, indexed: bool) -> None:
    """Regression: with `not_key`, other filters did not require the tag name, unless the index was used."""
    env = await QueryEnvironment.build([*FEW, f"sys.cpu {START_S} 7 host=lone"], indexed=indexed)
    for filters in (f"{others},dc=not_key()", f"dc=not_key(),{others}"):
        assert await env.groups(f"none:sys.cpu{{}}{{{filters}}}", corrected=True) == []
        listed = make_query(f"none:sys.cpu{{}}{{{filters}}}", corrected=True)
        every = tuple((b"\0\0\1" + one).hex() for one in await env.index.with_tag(b"\0\0\1", b"", 100) or [])
        listed = replace(listed, queries=(replace(listed.queries[0], tsuids=every),))
        assert (await env.engine.run(listed)).subs[0].groups == []


async def test_explicit_tags_without_filters_are_ignored() -> None:
    """Also if corrected: no series is without tags, so none would match."""
    env = await QueryEnvironment.build(FEW)
    for switch in (False, True):
        assert len(await env.groups("none:explicit_tags:sys.cpu", corrected=switch)) == 20


@layouts.opentsdb_only
async def test_unreadable_row_is_a_warning() -> None:
    env = await QueryEnvironment.build(FEW)
    pairs = next(iter(await env.index.with_tag(b"\0\0\1", b"", 100) or []))
    await env.store.put(DATA, [Put(row_key(KeyLayout(), b"\0\0\1", START_S, pairs), b"t:\0\0\0\x10", b"\1")])
    answer = await env.run("none:sys.cpu")
    assert len(answer.subs[0].groups) == 19
    assert len(answer.subs[0].warnings) == 1
    assert "00000150e22700" in answer.subs[0].warnings[0]
    assert env.engine.warnings == 1


@layouts.opentsdb_only
async def test_uid_without_name_is_a_warning() -> None:
    env = await QueryEnvironment.build(FEW)
    uid = (await env.uids.find(Kind.TAGV, [b"lga"]))[b"lga"]
    assert isinstance(uid, bytes)
    await env.store.delete(UID, {uid: [b"name:tagv"]}, up_to_ms=None)
    env.uids.drop_caches()
    answer = await env.run("none:sys.cpu{}{dc=*}")
    assert len(answer.subs[0].groups) == 20
    assert any("has no name" in warning for warning in answer.subs[0].warnings)


@layouts.opentsdb_only
@pytest.mark.difference(
    "duplicate-points",
    topic="queries",
    theirs="A point with two values fails every query that reads its row, unless `tsd.storage.fix_duplicates` is on",
    ours="The newest value is answered",
)
async def test_newest_duplicate_is_shown_and_counted() -> None:
    env = await QueryEnvironment.build(FEW)
    await env.put([f"sys.cpu {START_S + 10} 4242 host=web00 dc=sjc"])
    answer = await env.run("sum:sys.cpu{host=web00}")
    assert answer.subs[0].duplicates == 1
    assert values(answer.subs[0].groups[0])[10] == 4242


@layouts.opentsdb_only
async def test_row_and_global_annotations_are_shown() -> None:
    env = await QueryEnvironment.build(FEW)
    tsuid = (b"\0\0\1" + (await env.index.with_tag(b"\0\0\1", b"", 100) or [])[0]).hex()
    await env.annotate(Annotation(START_S + 5, description="own", tsuid=tsuid))
    await env.annotate(Annotation(START_S + 7300, description="later", tsuid=tsuid))
    await env.annotate(Annotation(START_S + 60, description="all"))
    answer = await env.run("none:sys.cpu", global_annotations=True)
    first, second, *_ = answer.subs[0].groups
    assert [note.description for note in first.annotations or ()] == ["own", "later"]  # who writes the answer cuts
    assert second.annotations is None
    assert [note.description for note in answer.global_annotations] == ["all"]
    assert (await env.groups("none:sys.cpu", no_annotations=True))[0].annotations is None


@layouts.opentsdb_only
async def test_a_series_without_rows_in_the_range_has_no_bucket_to_fill() -> None:
    both = [f"m {START_S} 1 host=a", f"m {START_S + 3600} 2 host=a", f"m {START_S - 7200} 1 host=b"]
    env = await QueryEnvironment.build(both, indexed=True)
    hours = {"end_ms": (START_S + 3600) * 1000}
    [group] = await env.groups("sum:1h-sum-scalar:m{host=a|b}", **hours)
    assert values(group) == {0: 1.0, 3600: 2.0}
    with pytest.raises(BadQuery, match="unhandled fill policy"):
        await env.run("sum:1h-sum-scalar:m{host=a|b}", start_ms=(START_S - 7200) * 1000, **hours)


@layouts.opentsdb_only
@pytest.mark.difference(
    "annotation-order",
    topic="corrected",
    theirs="Annotations that start in ms follow those that start in seconds",
    ours="they are in the order of their times",
)
async def test_annotations_in_ms_are_last_unless_corrected() -> None:
    env = await QueryEnvironment.build(FEW)
    for at in (START_S + 60, (START_S + 50) * 1000, START_S + 40):
        await env.annotate(Annotation(at, description=str(at)))
    for switch, wanted in ((False, [40, 60, 50]), (True, [40, 50, 60])):
        notes = (await env.run("sum:sys.cpu", global_annotations=True, corrected=switch)).global_annotations
        assert [start_ms(note) // 1000 - START_S for note in notes] == wanted


@layouts.opentsdb_only
@pytest.mark.difference(
    "annotation-end",
    topic="corrected",
    theirs="A global annotation that ends in ms is never included",
    ours="it is included",
)
async def test_global_annotation_ending_in_ms_needs_corrected() -> None:
    env = await QueryEnvironment.build(FEW)
    await env.annotate(Annotation(START_S + 60, end_time=(START_S + 70) * 1000, description="ms"))
    assert not (await env.run("sum:sys.cpu", global_annotations=True)).global_annotations
    shown = (await env.run("sum:sys.cpu", global_annotations=True, corrected=True)).global_annotations
    assert [note.description for note in shown] == ["ms"]


@layouts.opentsdb_only
@pytest.mark.difference(
    "explicit-tags",
    topic="corrected",
    theirs="Explicit tags lose series that differ from the first literals in two tags, and read an hour too many",
    ours="they do neither",
)
@pytest.mark.parametrize("indexed", [False, True])
async def test_explicit_tags_lose_series_unless_corrected(indexed: bool) -> None:
    """OpenTSDB's filter for them misses series that differ from the first literals in two tags, and reads an hour
    too many."""
    lines = [f"sys.cpu {START_S} 1 host={host} dc={dc}" for host, dc in ("ax", "ay", "bx", "by")]
    env = await QueryEnvironment.build([*lines, f"sys.cpu {START_S + 7200} 1 host=a dc=x extra=1"], indexed=indexed)
    m = "none:explicit_tags:sys.cpu{host=a|b,dc=x|y}"
    for switch, wanted in ((False, ["ax", "ay", "bx"]), (True, ["ax", "ay", "bx", "by"])):
        found = await env.groups(m, corrected=switch)
        assert [group.tags["host"] + group.tags["dc"] for group in found] == wanted
    await env.put([f"sys.cpu {START_S + 10800} 1 host=c dc=z"])  # the hour behind those of the query
    for switch, count in ((False, 1), (True, 0)):
        assert len(await env.groups("sum:explicit_tags:sys.cpu{host=c,dc=z}", corrected=switch)) == count


@layouts.opentsdb_only
async def test_tsuids_of_two_metrics_have_status_400_if_corrected() -> None:
    env = await QueryEnvironment.build([*FEW, f"sys.mem {START_S} 1 host=web00"])
    listed = ("000001000001000001", "000002000001000001")
    for flags, status in (({}, 500), ({"global_annotations": True}, 400), ({"corrected": True}, 400)):
        query = make_query("sum:sys.cpu", **flags)
        query = replace(query, queries=(replace(query.queries[0], tsuids=listed),))
        with pytest.raises(BadQuery, match=r"did not share the same metric \[000001\] \[000002\]") as caught:
            await env.engine.run(query)
        assert caught.value.status == status


@layouts.opentsdb_only
@pytest.mark.difference(
    "asterisk-with-tsuids",
    topic="corrected",
    theirs="With TSUIDs, a filter `*` also passes series without its tag name",
    ours="the tag name must be present",
)
async def test_asterisk_filters_tsuids_only_if_corrected() -> None:
    env = await QueryEnvironment.build([f"sys.cpu {START_S} 1 host=a", f"sys.cpu {START_S} 2 host=b dc=x"])
    listed = ("000001000001000001", "000001000001000002000002000003")
    for switch, wanted in ((False, 3), (True, 2)):
        query = make_query("sum:sys.cpu{}{dc=wildcard(*)}", corrected=switch)
        query = replace(query, queries=(replace(query.queries[0], tsuids=listed),))
        [sub] = (await env.engine.run(query)).subs
        assert values(sub.groups[0]) == {0: wanted}
        assert sub.filter_tagks == ()


async def test_bucket_before_the_range_leads_filled_rates() -> None:
    """If resets are dropped, its rate, NaN, holds until the series' first real rate."""
    lines = [f"m {START_S + 5600} 94 host=a", f"m {START_S + 10900} 73 host=a", f"m {START_S + 5500} 1 host=b"]
    env = await QueryEnvironment.build(lines)
    query = replace(make_query("sum:rate{dropcounter,65535,100}:90m-last-nan:m"), start_ms=(START_S + 7300) * 1000)
    [sub] = (await env.engine.run(replace(query, end_ms=(START_S + 16290) * 1000))).subs
    shown = {time: value for time, value in values(sub.groups[0]).items() if time > 7300}
    assert shown == {10800: pytest.approx(math.nan, nan_ok=True), 16200: pytest.approx(math.nan, nan_ok=True)}


async def test_delete_removes_only_rows_that_were_read() -> None:
    env = await QueryEnvironment.build(FEW)
    answer = await env.run("sum:sys.cpu{host=web03}", delete=True)
    assert len(answer.subs[0].groups) == 1
    assert await env.groups("sum:sys.cpu{host=web03}") == []
    assert len(await env.groups("none:sys.cpu")) == 19


@layouts.opentsdb_only
async def test_delete_names_each_row_once() -> None:
    """Also if the last row shows that groups cannot be aggregated while rows are read."""
    lines = [f"m {START_S + at} 1 host=h{host:03d}" for host in range(100) for at in range(2 if host < 99 else 1)]
    env = await QueryEnvironment.build(lines)
    named: list[Sequence[bytes]] = []

    @asynccontextmanager
    async def deleting(rows: Sequence[bytes]) -> AsyncIterator[None]:
        named.append(rows)
        yield

    reader = OpenTsdbReader(ReadTable(env.store, DATA, env.layout, deleting=deleting), env.uids)

    async def flush(_: bytes) -> bool:
        return True

    engine = QueryEngine(reader, settings=EngineSettings(), flush=flush, now_ms=lambda: NOW_MS)
    answer = await engine.run(make_query("sum:m", delete=True))
    assert answer.subs[0].stats["dpsPreFilter"] == 199
    assert [len(rows) for rows in named] == [100]


async def test_points_are_not_deleted_while_others_cannot_be_stored_first() -> None:
    """These would come back."""
    env = await QueryEnvironment.build(["m 1 1 host=a"])
    deleter = AsyncMock()

    async def flush(_: bytes) -> bool:
        return False

    reader = OpenTsdbReader(ReadTable(env.store, DATA, env.layout), env.uids)
    engine = QueryEngine(reader, settings=EngineSettings(), flush=flush, now_ms=lambda: NOW_MS)
    with pytest.raises(StoreDown):
        await engine.work(lambda job: job.stored.delete(make_query("sum:m"), deleter, (0, NOW_MS)))
    deleter.delete.assert_not_awaited()
