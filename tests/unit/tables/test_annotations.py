"""Annotations, in addition to the vectors: those of other writers, errors in bulk requests, and deletion."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.interfering_store import InterferingStore
from tests.unit.tables.endpoints import NOW_MS, TABLES, World, make_world
from tsd.api import annotation
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, annotation_row
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import StoreError
from tsd.store import Put, scan
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.database import Database
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.annotations import AnnotationRows

TIME = 1_600_000_000
HOUR_S = 3600
LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1)]


async def with_notes(layout: KeyLayout = LAYOUTS[0]) -> World:
    world = await make_world()
    world.layout = layout
    rows = AnnotationRows(world.store, "tsdb", world.layout)
    world.endpoints = annotation.routes(rows, world.catalog(), lambda: NOW_MS)
    return world


async def stored(world: World) -> list[bytes]:
    return [cell.value async for rows in scan(world.store, "tsdb") for row in rows for cell in row.cells]


@pytest.mark.difference(
    "annotation-spelling",
    topic="metadata",
    theirs="An annotation in a cell that OpenTSDB would encode differently can never be changed",
    ours="It can be changed",
)
async def test_annotation_written_by_opentsdb_can_be_changed() -> None:
    world = await with_notes()
    row = annotation_row(world.layout, TIME)
    spelled = b'{ "startTime": 1600000000, "notes": "n", "of others": 1 }'
    await world.store.put("tsdb", [Put(row, COLUMN + annotation_qualifier(TIME), spelled)])
    response = await world.request("POST", "/api/annotation", {"startTime": TIME, "description": "d"})
    assert (response.status, response.body["description"], response.body["notes"]) == (200, "d", "n")
    assert await stored(world) == [
        b'{"startTime":1600000000,"endTime":0,"description":"d","notes":"n","custom":null}',
    ]


@pytest.mark.difference(
    "null-texts",
    topic="metadata",
    theirs="A null as a text of an annotation or of metadata is stored. Answers show it, or lack the text",
    ours="It is read as if the key were absent",
)
async def test_null_in_place_of_a_text_is_as_if_it_were_absent() -> None:
    world = await with_notes()
    assert (await world.request("POST", "/api/annotation", {"startTime": TIME, "notes": None})).status == 304
    await world.request("POST", "/api/annotation", {"startTime": TIME, "notes": "n", "custom": {"k": "v"}})
    changed = {"startTime": TIME, "description": "d", "notes": None, "custom": None}
    response = await world.request("POST", "/api/annotation", changed)
    found = [response.body[name] for name in ("description", "notes", "custom")]
    assert found == ["d", "n", {"k": "v"}]
    response = await world.request("PUT", "/api/annotation", {"startTime": TIME, "description": None, "notes": "m"})
    assert (response.body["description"], response.body["notes"]) == ("", "m")


async def test_lower_of_two_times_of_a_column_is_kept() -> None:
    world = await with_notes()
    assert (await world.request("POST", "/api/annotation", {"startTime": TIME * 1000, "notes": "a"})).status == 200
    response = await world.request("POST", "/api/annotation", {"startTime": TIME, "description": "b"})
    assert (response.body["startTime"], response.body["notes"], response.body["description"]) == (TIME, "a", "b")
    assert len(await stored(world)) == 1


@pytest.mark.difference(
    "annotation-bulk",
    topic="metadata",
    theirs="A bulk of annotations is stored up to the first bad one and has no bound",
    ours="All or none are stored, 10,000 at most",
)
async def test_bulk_with_an_invalid_annotation_stores_none() -> None:
    world = await with_notes()
    good, bad = {"startTime": TIME, "notes": "n"}, {"notes": "n"}
    assert (await world.request("POST", "/api/annotation/bulk", [good, bad])).status == 400
    assert await stored(world) == []


@pytest.mark.difference("annotation-bulk")
async def test_size_of_a_bulk_is_bounded() -> None:
    world = await with_notes()
    many = [{"startTime": TIME, "notes": "n"}] * (annotation.MAX_ANNOTATIONS + 1)
    assert (await world.request("POST", "/api/annotation/bulk", many)).status == 413
    assert await stored(world) == []


@pytest.mark.difference(
    "annotation-tsuid",
    topic="metadata",
    theirs="Annotations are stored for any text in place of a TSUID",
    ours="They are refused if it cannot be a series",
)
@pytest.mark.parametrize("tsuid", ["0000", "00000100000100", "nothex"])
async def test_annotation_on_an_invalid_tsuid_is_refused(tsuid: str) -> None:
    world = await with_notes()
    assert (
        await world.request("POST", "/api/annotation", {"startTime": TIME, "tsuid": tsuid, "notes": "n"})
    ).status == 400
    assert await stored(world) == []


@pytest.mark.difference(
    "global-annotations",
    topic="metadata",
    theirs=(
        "`/api/annotations` never finds global annotations that end in milliseconds, nor any without `end_time`. It "
        "may find those that start after the range"
    ),
    ours="It finds those that start and end in the range",
)
async def test_global_annotations_in_milliseconds_are_found() -> None:
    world = await with_notes()
    note = {"startTime": TIME * 1000 + 500, "endTime": TIME * 1000 + 700, "notes": "n"}
    assert (await world.request("POST", "/api/annotation", note)).status == 200
    response = await world.request("GET", f"/api/annotations?start_time={TIME}&end_time={TIME + 1}")
    assert [one["startTime"] for one in response.body] == [TIME * 1000 + 500]


@pytest.mark.difference("global-annotations")
async def test_global_annotations_after_the_range_are_not_found() -> None:
    world = await with_notes()
    notes = [{"startTime": TIME + at, "notes": f"{at}"} for at in (0, 5)]
    assert (await world.request("POST", "/api/annotation/bulk", notes)).status == 200
    for end, wanted in ((f"&end_time={TIME + 3}", ["0"]), ("", ["0", "5"])):
        response = await world.request("GET", f"/api/annotations?start_time={TIME}{end}")
        assert [one["notes"] for one in response.body] == wanted


async def test_bulk_without_changes_changes_nothing() -> None:
    world = await with_notes()
    assert (await world.request("POST", "/api/annotation", {"startTime": TIME, "notes": "n"})).status == 200
    before = await stored(world)
    for method in ("POST", "PUT"):
        response = await world.request(method, "/api/annotation/bulk", [{"startTime": TIME}, {"startTime": TIME + 1}])
        assert (response.status, response.body) == (200, [])
        assert await stored(world) == before


async def test_annotations_of_a_bulk_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await EmbeddedStore.open(tmp_path / "store", lambda: NOW_MS)
    await store.create_tables(TABLES)
    world = World(store)
    world.endpoints = annotation.routes(AnnotationRows(store, "tsdb", world.layout), world.catalog(), lambda: NOW_MS)
    syncs, sync = Counter[str](), Database.sync

    def counted(database: Database) -> None:
        syncs["all"] += 1
        sync(database)

    monkeypatch.setattr(Database, "sync", counted)
    notes = [{"startTime": TIME + n, "notes": f"{n}"} for n in range(400)]
    response = await world.request("POST", "/api/annotation/bulk", notes)
    assert [one["notes"] for one in response.body] == [one["notes"] for one in notes]
    assert len(await stored(world)) == 400
    assert 1 <= syncs["all"] < 40
    await store.aclose()


async def test_repeated_annotation_is_confirmed_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a repeated request was confirmed without a sync, although that of the first one had failed."""
    store = await EmbeddedStore.open(tmp_path / "store", lambda: NOW_MS)
    await store.create_tables(TABLES)
    rows = AnnotationRows(store, "tsdb", LAYOUTS[0])

    def fail(_database: Database) -> None:
        raise StoreError("the disk fails")

    with monkeypatch.context() as failing:
        failing.setattr(Database, "sync", fail)
        for _ in range(2):
            with pytest.raises(StoreError):
                await rows.put(Annotation(TIME, notes="n"), b"")
    await store.aclose()


async def test_annotations_of_one_place_are_changed_in_their_order() -> None:
    world = await with_notes()
    changes = [
        *({"startTime": TIME, "notes": f"{n}"} for n in range(20)),
        {"startTime": TIME * 1000, "description": "d"},
    ]
    response = await world.request("POST", "/api/annotation/bulk", changes)
    assert [(one["notes"], one["description"]) for one in response.body] == [
        *((f"{n}", "") for n in range(20)),
        ("19", "d"),
    ]


async def test_bulk_deletion_deletes_selected_annotations_only() -> None:
    world = await with_notes()
    tsuid = (await world.series("m", host="a")).hex().upper()
    other = (await world.series("m", host="b")).hex().upper()
    for name in (tsuid, other, ""):
        notes = [{"startTime": TIME + at, "tsuid": name, "notes": "n"} for at in (0, 3600, 7200)]
        assert (await world.request("POST", "/api/annotation/bulk", notes)).status == 200
    row = annotation_row(world.layout, TIME, bytes.fromhex(tsuid))
    await world.store.put("tsdb", [Put(row, b"t:\0\0", b"\1")])
    path = f"/api/annotations/bulk?method_override=delete&start_time={TIME}&end_time={TIME + 3600}&tsuids={tsuid}"
    response = await world.request("GET", path)
    assert response.body == {
        "tsuids": [tsuid],
        "global": False,
        "startTime": TIME * 1000,
        "endTime": (TIME + 3600) * 1000,
        "totalDeleted": 2,
    }
    assert len(await stored(world)) == 9 - 2 + 1


def reads(world: World) -> int:
    count = world.store.statistics()
    return count.get("get", 0) + count.get("page", 0)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_bulk_deletion_over_decades_needs_few_reads(layout: KeyLayout) -> None:
    world = await with_notes(layout)
    tsuids = [(await world.series(metric, host="a")).hex().upper() for metric in ("m", "m", "n")]
    for name in (tsuids[0], tsuids[2], ""):
        notes = [{"startTime": at, "tsuid": name, "notes": "n"} for at in (1, 1_356_998_400, TIME)]
        assert (await world.request("POST", "/api/annotation/bulk", notes)).status == 200
    before = reads(world)
    body = {"tsuids": tsuids, "global": True, "startTime": "1", "endTime": str(TIME - 1)}
    response = await world.request("DELETE", "/api/annotation/bulk", body)
    assert response.body["totalDeleted"] == 6
    assert len(await stored(world)) == 3
    assert reads(world) - before < 20


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hours", [50, 3000, 100_000])
@pytest.mark.parametrize("named", [1, 40])
async def test_bulk_deletion_deletes_the_same_from_few_and_from_many_rows(
    layout: KeyLayout, hours: int, named: int
) -> None:
    """Whether the series' metric has rows in each hour or in few hours, so that scans or reads by key are shorter."""
    world, rng = await with_notes(layout), random.Random(hours + named)
    series = [await world.series("m", host=str(n)) for n in range(60)]
    first = TIME // HOUR_S * HOUR_S - hours * HOUR_S
    end = first + hours * HOUR_S - 1000
    puts, left, deleted = [], [], 0
    for at in rng.sample(range(60 * hours), min(60 * hours, 2500)):
        start, one = first + at // 60 * HOUR_S + rng.randrange(HOUR_S), at % 60
        note = b'{"startTime":%d}' % start
        puts.append(Put(annotation_row(layout, start, series[one]), COLUMN + annotation_qualifier(start), note))
        is_deleted = one < named and first + 1000 <= start <= end
        deleted += is_deleted
        left += [] if is_deleted else [note]
    await world.store.put("tsdb", puts)
    rows = AnnotationRows(world.store, "tsdb", layout)
    assert await rows.delete_between((first + 1000) * 1000, end * 1000, series[:named], global_=False) == deleted
    assert sorted(await stored(world)) == sorted(left)


async def test_annotation_edited_during_its_deletion_stays() -> None:
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables(TABLES)
    rows = AnnotationRows(store, "tsdb", KeyLayout())
    cells = {}
    for start in (TIME, TIME + HOUR_S):
        column = COLUMN + annotation_qualifier(start)
        cells[start] = Put(annotation_row(KeyLayout(), start), column, b'{"startTime":%d}' % start)
    await store.put("tsdb", [cells[TIME]], time_ms=NOW_MS)
    await store.put("tsdb", [cells[TIME + HOUR_S]], time_ms=NOW_MS + 5000)  # by a server whose clock is ahead

    async def edit() -> None:
        edited = cells[TIME]._replace(value=b'{"startTime":%d,"notes":"n"}' % TIME)
        await store.store.put("tsdb", [edited], time_ms=NOW_MS + 1)

    store.before["delete"] = edit
    await rows.delete_between(TIME * 1000, (TIME + HOUR_S) * 1000, [], global_=True)
    found = await rows.get(TIME, b"")
    assert found is not None
    assert found.notes == "n"
    assert await rows.get(TIME + HOUR_S, b"") is None


BAD_TIME = "Invalid time: x. Invalid character 'x' in x"


@pytest.mark.parametrize(
    ("method", "target", "body", "message"),
    [
        ("GET", "/api/annotation?notes=&end_time=-5", None, annotation.NO_START_IN_URL),
        ("POST", "/api/annotation?end_time=x", None, annotation.NO_START_IN_URL),
        ("DELETE", "/api/annotation?start_time=&end_time=x", None, annotation.NO_START_IN_URL),
        ("GET", "/api/annotations?end_time=x", None, annotation.NO_START_IN_URL),
        ("DELETE", "/api/annotation/bulk?start_time=x&global=true", None, BAD_TIME),
        ("DELETE", "/api/annotation/bulk?start_time=5&end_time=x&global=true", None, BAD_TIME),
        ("DELETE", "/api/annotation/bulk", {"startTime": "x", "global": True}, BAD_TIME),
        ("DELETE", "/api/annotation/bulk", {"endTime": "x", "global": True}, "Missing the start time value"),
        ("DELETE", "/api/annotation/bulk", {"startTime": "x"}, "Missing the TSUIDs or global annotations flag"),
    ],
)
async def test_wrong_times_are_refused_with_400_where_opentsdb_does_so(
    method: str, target: str, body: object, message: str
) -> None:
    response = await (await with_notes()).request(method, target, body)
    assert (response.status, response.body["error"]["message"]) == (400, message)
