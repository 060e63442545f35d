"""Annotations, in addition to the vectors: those of other writers, errors in bulk requests, and deletion."""

import pytest

from tests.unit.tables.endpoints import NOW_MS, World, make_world
from tsd.api import annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, annotation_row
from tsd.codec.opentsdb.cell import COLUMN
from tsd.store import Put, scan
from tsd.tables.opentsdb.annotations import AnnotationRows

TIME = 1_600_000_000


async def with_notes() -> World:
    world = await make_world()
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
    theirs="Global annotations that end in milliseconds are never found",
    ours="They are found",
)
async def test_global_annotations_in_milliseconds_are_found() -> None:
    world = await with_notes()
    note = {"startTime": TIME * 1000 + 500, "endTime": TIME * 1000 + 700, "notes": "n"}
    assert (await world.request("POST", "/api/annotation", note)).status == 200
    response = await world.request("GET", f"/api/annotations?start_time={TIME}&end_time={TIME + 1}")
    assert [one["startTime"] for one in response.body] == [TIME * 1000 + 500]


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
