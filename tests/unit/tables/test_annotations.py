"""Notes beside what vectors say of them: what is stored by others, what is wrong in a bulk, and what is deleted."""

import pytest

from tests.unit.metadata.asking import NOW_MS, World, make_world
from tsd.api import annotation
from tsd.codec.annotation import annotation_qualifier, annotation_row
from tsd.codec.cell import COLUMN
from tsd.metadata.notes import Notes
from tsd.store import Put, scan

TIME = 1_600_000_000


async def with_notes() -> World:
    world = await make_world()
    notes = Notes(world.store, "tsdb", world.layout)
    world.endpoints = annotation.routes(notes, world.layout, lambda: NOW_MS)
    return world


async def stored(world: World) -> list[bytes]:
    return [cell.value async for rows in scan(world.store, "tsdb") for row in rows for cell in row.cells]


async def test_a_note_that_others_spelled_otherwise_can_be_changed() -> None:
    world = await with_notes()
    row = annotation_row(world.layout, TIME)
    spelled = b'{ "startTime": 1600000000, "notes": "n", "of others": 1 }'
    await world.store.put("tsdb", [Put(row, COLUMN + annotation_qualifier(TIME), spelled)])
    said = await world.ask("POST", "/api/annotation", {"startTime": TIME, "description": "d"})
    assert (said.status, said.body["description"], said.body["notes"]) == (200, "d", "n")
    assert await stored(world) == [
        b'{"startTime":1600000000,"endTime":0,"description":"d","notes":"n","custom":null}',
    ]


async def test_of_two_times_of_one_place_the_lower_one_stays() -> None:
    world = await with_notes()
    assert (await world.ask("POST", "/api/annotation", {"startTime": TIME * 1000, "notes": "a"})).status == 200
    said = await world.ask("POST", "/api/annotation", {"startTime": TIME, "description": "b"})
    assert (said.body["startTime"], said.body["notes"], said.body["description"]) == (TIME, "a", "b")
    assert len(await stored(world)) == 1


async def test_a_bulk_with_one_bad_note_stores_none() -> None:
    world = await with_notes()
    good, bad = {"startTime": TIME, "notes": "n"}, {"notes": "n"}
    assert (await world.ask("POST", "/api/annotation/bulk", [good, bad])).status == 400
    assert await stored(world) == []


async def test_a_bulk_has_a_bound() -> None:
    world = await with_notes()
    many = [{"startTime": TIME, "notes": "n"}] * (annotation.MOST_NOTES + 1)
    assert (await world.ask("POST", "/api/annotation/bulk", many)).status == 413
    assert await stored(world) == []


@pytest.mark.parametrize("tsuid", ["0000", "00000100000100", "nothex"])
async def test_a_note_on_what_can_be_no_series_is_refused(tsuid: str) -> None:
    world = await with_notes()
    assert (await world.ask("POST", "/api/annotation", {"startTime": TIME, "tsuid": tsuid, "notes": "n"})).status == 400
    assert await stored(world) == []


async def test_global_notes_in_milliseconds_are_found() -> None:
    world = await with_notes()
    note = {"startTime": TIME * 1000 + 500, "endTime": TIME * 1000 + 700, "notes": "n"}
    assert (await world.ask("POST", "/api/annotation", note)).status == 200
    said = await world.ask("GET", f"/api/annotations?start_time={TIME}&end_time={TIME + 1}")
    assert [one["startTime"] for one in said.body] == [TIME * 1000 + 500]


async def test_only_notes_of_the_time_and_series_are_deleted_and_no_point() -> None:
    world = await with_notes()
    tsuid = (await world.series("m", host="a")).hex().upper()
    other = (await world.series("m", host="b")).hex().upper()
    for name in (tsuid, other, ""):
        notes = [{"startTime": TIME + at, "tsuid": name, "notes": "n"} for at in (0, 3600, 7200)]
        assert (await world.ask("POST", "/api/annotation/bulk", notes)).status == 200
    row = annotation_row(world.layout, TIME, bytes.fromhex(tsuid))
    await world.store.put("tsdb", [Put(row, b"t:\0\0", b"\1")])
    asked = f"/api/annotations/bulk?method_override=delete&start_time={TIME}&end_time={TIME + 3600}&tsuids={tsuid}"
    said = await world.ask("GET", asked)
    assert said.body == {
        "tsuids": [tsuid],
        "global": False,
        "startTime": TIME * 1000,
        "endTime": (TIME + 3600) * 1000,
        "totalDeleted": 2,
    }
    assert len(await stored(world)) == 9 - 2 + 1
