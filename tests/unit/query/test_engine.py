"""The engine: what it answers is OpenTSDB's (tests/conformance); here, what it does besides."""

import math
from dataclasses import replace

import pytest

from tests.unit.query.engines import DATA, FEW, NOW_MS, START_S, UID, House, asked, values
from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout, row_key
from tsd.codec.uid import Kind
from tsd.errors import BadQuery
from tsd.query.engine import Settings
from tsd.query.notes import start_ms
from tsd.query.running import Registry
from tsd.store import Put

HOSTS = [f"web{host:02d}" for host in range(20)]
LAYOUTS = [Layout(), Layout(salt_width=1, salt_buckets=4)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_groups_come_in_the_order_of_their_uids_with_their_names(layout: Layout) -> None:
    house = await House.build(FEW, layout=layout)
    groups = await house.groups("sum:sys.cpu{dc=*}")
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
    ],
)
async def test_the_index_changes_no_answer(m: str, layout: Layout) -> None:
    lines = [*FEW, *(f"sys.cpu {START_S + hour * 3600 + 5} 1 host=web03 dc=lga" for hour in range(6))]
    plain = await House.build(lines, layout=layout)
    indexed = await House.build(lines, layout=layout, indexed=True)
    query = replace(asked(m), end_ms=(START_S + 6 * 3600) * 1000)
    wanted, found = await plain.engine.run(query), await indexed.engine.run(query)
    assert [(dict(g.tags), values(g)) for g in found.subs[0].groups] == [
        (dict(g.tags), values(g)) for g in wanted.subs[0].groups
    ]


async def test_with_the_index_one_of_many_reads_its_own_rows_only() -> None:
    house = await House.build(FEW, indexed=True)
    answer = await house.run("sum:sys.cpu{host=web07}")
    assert answer.subs[0].stats["rowsPreFilter"] == 1
    scanned = await (await House.build(FEW)).run("sum:sys.cpu{host=web07}")
    assert scanned.subs[0].stats["rowsPreFilter"] == 20
    assert values(answer.subs[0].groups[0]) == values(scanned.subs[0].groups[0])


async def test_an_index_that_is_out_of_date_is_not_asked() -> None:
    house = await House.build(FEW, indexed=True)
    await house.index.outdate()
    answer = await house.run("sum:sys.cpu{host=web07}")
    assert answer.subs[0].stats["rowsPreFilter"] == 20
    assert await house.index.rebuild(DATA) == 20
    assert (await house.run("sum:sys.cpu{host=web07}")).subs[0].stats["rowsPreFilter"] == 1


async def test_open_rows_of_the_metric_are_written_first() -> None:
    house = await House.build(FEW)
    await house.run("sum:sys.cpu", "max:sys.cpu{host=*}")
    assert house.flushed == [b"sys.cpu"]


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
async def test_unknown_names(m: str, message: str) -> None:
    house = await House.build(FEW)
    with pytest.raises(BadQuery, match=message):
        await house.run(m)


async def test_the_list_of_queries_tells_what_one_came_to() -> None:
    house = await House.build(FEW)
    with Registry(lambda: NOW_MS).entered(asked("sum:sys.cpu"), "127.0.0.1:5", {}) as running:
        await house.run("sum:sys.cpu{host=web01}", "max:sys.cpu", running=running)
    figures = [running.stats[name] for name in ("rowsPreFilter", "rowsPostFilter", "dpsPostFilter", "emittedDPs")]
    assert figures == [40, 21, 105, 10]


@pytest.mark.parametrize("m", ["sum:sys.cpu", "sum:1n-sum:sys.cpu", "sum:explicit_tags:sys.cpu{host=*,dc=*}"])
async def test_a_range_may_begin_in_1970_and_end_after_2106(m: str) -> None:
    house = await House.build(FEW)
    wanted = [values(group) for group in await house.groups(m.replace("1n", "30d"))]
    for begin, end in (
        (1000, NOW_MS),
        (4_294_968_000, NOW_MS),
        (1000, 4_294_967_295_000),
        (0, 9_999_999_999_000),
    ):
        answer = await house.engine.run(replace(asked(m), start_ms=begin, end_ms=end))
        assert all(sum(values(group).values()) for group in answer.subs[0].groups)
        assert len(answer.subs[0].groups) == len(wanted)


@pytest.mark.parametrize("switch", [False, True])
async def test_buckets_may_be_longer_than_all_times(switch: bool) -> None:
    """Steps by the calendar past the year 9999 were an error of ours, where OpenTSDB has one bucket."""
    house = await House.build(FEW)
    for span in ("999999999dc", "2147483647wc", "200000nc", "9000yc", "2147483647hc", f"{(1 << 63) - 1}ms"):
        for fill in ("", "-zero"):
            query = asked(f"sum:{span}-sum{fill}:sys.cpu{{host=web01}}", corrected=switch)
            [group] = (await house.engine.run(query)).subs[0].groups
            left_out = span.endswith("wc") and not switch  # the week began before what is read
            assert fill or sum(values(group).values()) == (0 if left_out else 510), span


async def test_unknown_values_may_be_passed_over() -> None:
    settings = Settings()
    settings = replace(settings, rules=settings.rules._replace(skip_unresolved_tagvs=True))
    house = await House.build(FEW, settings=settings)
    assert len(await house.groups("sum:sys.cpu{host=web01|nope}")) == 1
    assert await house.groups("sum:sys.cpu{host=nope}") == []


async def test_many_literals_are_compared_by_name() -> None:
    settings = Settings()
    settings = replace(settings, rules=settings.rules._replace(expansion_limit=1))
    house = await House.build(FEW, settings=settings)
    groups = await house.groups("sum:sys.cpu{host=web01|web02|nope}")
    assert [group.tags["host"] for group in groups] == ["web01", "web02"]


@pytest.mark.parametrize(
    ("filters", "ours", "corrected"),
    [
        ("{}{host=literal_or(web01),host=literal_or(web02)}", ["web01", "web02"], []),
        ("{}{dc=literal_or(lga),dc=wildcard(*)}", HOSTS, HOSTS[1::2]),
    ],
)  # fmt: skip
async def test_literals_on_one_key(filters: str, ours: list[str], corrected: list[str]) -> None:
    """OpenTSDB unites them on the lowest key and loses them on others; corrected, all filters must pass."""
    house = await House.build(FEW)
    wide = filters.replace("{}{", "{}{host=wildcard(*),") if "dc=" in filters else filters
    for switch, wanted in ((False, ours), (True, corrected)):
        groups = await house.groups(f"none:sys.cpu{wide}", corrected=switch)
        assert [group.tags["host"] for group in groups] == wanted


async def test_not_key_when_corrected() -> None:
    house = await House.build([*FEW, f"sys.cpu {START_S} 7 host=lone"])
    groups = await house.groups("none:sys.cpu{}{dc=not_key()}", corrected=True)
    assert [dict(group.tags) for group in groups] == [{"host": "lone"}]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("others", ["dc=lga", "dc=wildcard(*)", "dc=regexp(.)", "dc=lga,dc=wildcard(l*)"])
async def test_no_series_lacks_a_tag_name_and_has_it(others: str, indexed: bool) -> None:
    """Beside `not_key` the others did not ask for the tag name any more; with the index it was otherwise."""
    house = await House.build([*FEW, f"sys.cpu {START_S} 7 host=lone"], indexed=indexed)
    for filters in (f"{others},dc=not_key()", f"dc=not_key(),{others}"):
        assert await house.groups(f"none:sys.cpu{{}}{{{filters}}}", corrected=True) == []
        listed = asked(f"none:sys.cpu{{}}{{{filters}}}", corrected=True)
        every = tuple((b"\0\0\1" + one).hex() for one in await house.index.with_tag(b"\0\0\1", b"", 100) or [])
        listed = replace(listed, queries=(replace(listed.queries[0], tsuids=every),))
        assert (await house.engine.run(listed)).subs[0].groups == []


async def test_explicit_tags_without_filters_ask_for_nothing() -> None:
    """Corrected neither: no series is without tags, so that none would pass."""
    house = await House.build(FEW)
    for switch in (False, True):
        assert len(await house.groups("none:explicit_tags:sys.cpu", corrected=switch)) == 20


async def test_a_row_that_cannot_be_read_is_a_warning() -> None:
    house = await House.build(FEW)
    pairs = next(iter(await house.index.with_tag(b"\0\0\1", b"", 100) or []))
    await house.store.put(DATA, [Put(row_key(Layout(), b"\0\0\1", START_S, pairs), b"t:\0\0\0\x10", b"\1")])
    answer = await house.run("none:sys.cpu")
    assert len(answer.subs[0].groups) == 19
    assert len(answer.subs[0].warnings) == 1
    assert "00000150e22700" in answer.subs[0].warnings[0]
    assert house.engine.warnings == 1


async def test_a_uid_without_a_name_is_a_warning() -> None:
    house = await House.build(FEW)
    uid = (await house.uids.find(Kind.TAGV, [b"lga"]))[b"lga"]
    assert isinstance(uid, bytes)
    await house.store.delete(UID, {uid: [b"name:tagv"]}, up_to_ms=None)
    house.uids.drop_caches()
    answer = await house.run("none:sys.cpu{}{dc=*}")
    assert len(answer.subs[0].groups) == 20
    assert any("has no name any more" in warning for warning in answer.subs[0].warnings)


async def test_duplicates_are_counted_and_the_newest_is_shown() -> None:
    house = await House.build(FEW)
    await house.put([f"sys.cpu {START_S + 10} 4242 host=web00 dc=sjc"])
    answer = await house.run("sum:sys.cpu{host=web00}")
    assert answer.subs[0].duplicates == 1
    assert values(answer.subs[0].groups[0])[10] == 4242


async def test_notes_of_rows_and_global_ones() -> None:
    house = await House.build(FEW)
    tsuid = (b"\0\0\1" + (await house.index.with_tag(b"\0\0\1", b"", 100) or [])[0]).hex()
    await house.annotate(Annotation(START_S + 5, description="own", tsuid=tsuid))
    await house.annotate(Annotation(START_S + 7300, description="later", tsuid=tsuid))
    await house.annotate(Annotation(START_S + 60, description="all"))
    answer = await house.run("none:sys.cpu", global_annotations=True)
    first, second, *_ = answer.subs[0].groups
    assert [note.description for note in first.annotations or ()] == ["own", "later"]  # who writes the answer cuts
    assert second.annotations is None
    assert [note.description for note in answer.global_annotations] == ["all"]
    assert (await house.groups("none:sys.cpu", no_annotations=True))[0].annotations is None


async def test_notes_in_milliseconds_come_last_unless_corrected() -> None:
    house = await House.build(FEW)
    for at in (START_S + 60, (START_S + 50) * 1000, START_S + 40):
        await house.annotate(Annotation(at, description=str(at)))
    for switch, wanted in ((False, [40, 60, 50]), (True, [40, 50, 60])):
        notes = (await house.run("sum:sys.cpu", global_annotations=True, corrected=switch)).global_annotations
        assert [start_ms(note) // 1000 - START_S for note in notes] == wanted


async def test_a_global_note_that_ends_in_milliseconds_is_shown_when_corrected() -> None:
    house = await House.build(FEW)
    await house.annotate(Annotation(START_S + 60, end_time=(START_S + 70) * 1000, description="ms"))
    assert not (await house.run("sum:sys.cpu", global_annotations=True)).global_annotations
    shown = (await house.run("sum:sys.cpu", global_annotations=True, corrected=True)).global_annotations
    assert [note.description for note in shown] == ["ms"]


@pytest.mark.parametrize("indexed", [False, True])
async def test_explicit_tags_lose_series_unless_corrected(indexed: bool) -> None:
    """OpenTSDB's filter for them finds no series that differs from the first literals in two tags, and reads an hour
    too many."""
    lines = [f"sys.cpu {START_S} 1 host={host} dc={dc}" for host, dc in ("ax", "ay", "bx", "by")]
    house = await House.build([*lines, f"sys.cpu {START_S + 7200} 1 host=a dc=x extra=1"], indexed=indexed)
    m = "none:explicit_tags:sys.cpu{host=a|b,dc=x|y}"
    for switch, wanted in ((False, ["ax", "ay", "bx"]), (True, ["ax", "ay", "bx", "by"])):
        found = await house.groups(m, corrected=switch)
        assert [group.tags["host"] + group.tags["dc"] for group in found] == wanted
    await house.put([f"sys.cpu {START_S + 10800} 1 host=c dc=z"])  # the hour behind those of the query
    for switch, count in ((False, 1), (True, 0)):
        assert len(await house.groups("sum:explicit_tags:sys.cpu{host=c,dc=z}", corrected=switch)) == count


async def test_tsuids_of_two_metrics_are_a_mistake_of_the_clients_when_corrected() -> None:
    house = await House.build([*FEW, f"sys.mem {START_S} 1 host=web00"])
    listed = ("000001000001000001", "000002000001000001")
    for flags, status in (({}, 500), ({"global_annotations": True}, 400), ({"corrected": True}, 400)):
        query = asked("sum:sys.cpu", **flags)
        query = replace(query, queries=(replace(query.queries[0], tsuids=listed),))
        with pytest.raises(BadQuery, match=r"did not share the same metric \[000001\] \[000002\]") as caught:
            await house.engine.run(query)
        assert caught.value.status == status


async def test_a_filter_that_is_an_asterisk_asks_nothing_of_listed_series_unless_corrected() -> None:
    house = await House.build([f"sys.cpu {START_S} 1 host=a", f"sys.cpu {START_S} 2 host=b dc=x"])
    listed = ("000001000001000001", "000001000001000002000002000003")
    for switch, wanted in ((False, 3), (True, 2)):
        query = asked("sum:sys.cpu{}{dc=wildcard(*)}", corrected=switch)
        query = replace(query, queries=(replace(query.queries[0], tsuids=listed),))
        [sub] = (await house.engine.run(query)).subs
        assert values(sub.groups[0]) == {0: wanted}
        assert sub.filter_tagks == ()


async def test_the_bucket_before_those_that_are_read_leads_the_rates_of_a_filled_series() -> None:
    """Where resets are dropped, its rate, of NaN, stands until the series' first real one, and not v/t."""
    lines = [f"m {START_S + 5600} 94 host=a", f"m {START_S + 10900} 73 host=a", f"m {START_S + 5500} 1 host=b"]
    house = await House.build(lines)
    query = replace(asked("sum:rate{dropcounter,65535,100}:90m-last-nan:m"), start_ms=(START_S + 7300) * 1000)
    [sub] = (await house.engine.run(replace(query, end_ms=(START_S + 16290) * 1000))).subs
    shown = {time: value for time, value in values(sub.groups[0]).items() if time > 7300}
    assert shown == {10800: pytest.approx(math.nan, nan_ok=True), 16200: pytest.approx(math.nan, nan_ok=True)}


async def test_delete_removes_the_rows_read_and_no_others() -> None:
    house = await House.build(FEW)
    answer = await house.run("sum:sys.cpu{host=web03}", delete=True)
    assert len(answer.subs[0].groups) == 1
    assert await house.groups("sum:sys.cpu{host=web03}") == []
    assert len(await house.groups("none:sys.cpu")) == 19
