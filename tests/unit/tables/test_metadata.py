"""Names over HTTP: suggested, assigned, renamed, described."""

import json

import pytest

from tests.unit.metadata.asking import NOW_MS, TABLES, World, make_world
from tsd.api import meta, suggest, uid
from tsd.codec.uid import Kind, Widths
from tsd.metadata.described import SeriesMetas, UidMetas
from tsd.store.memory import MemoryStore
from tsd.uids import Uids


async def with_names() -> World:
    world = await make_world()
    widths = Widths()
    told = meta.endpoints(
        world.uids,
        UidMetas(world.store, "tsdb-uid"),
        SeriesMetas(world.store, "tsdb-meta", widths),
        widths,
        lambda: NOW_MS // 1000,
    )
    names = uid.routes(world.store, "tsdb-uid", world.uids, world.drop_caches, extra=b"", meta=told)
    world.endpoints = {**suggest.routes(world.store, "tsdb-uid"), **names}
    return world


async def test_no_more_names_are_suggested_than_are_asked_for_or_than_there_is_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await with_names()
    for number in range(40):
        await world.uid(Kind.TAGV, f"h{number:02}")
    await world.uid(Kind.TAGK, "h")
    first = [f"h{number:02}" for number in range(40)]
    for query, count in (("", 25), ("&max=0", 25), ("&max=30", 30), ("&max=100", 40)):
        assert (await world.ask("GET", f"/api/suggest?type=tagv&q=h{query}")).body == first[:count]
    assert (await world.ask("GET", "/api/suggest?type=tagv&q=日")).body == []
    monkeypatch.setattr(suggest, "MOST", 31)
    assert len((await world.ask("GET", "/api/suggest?type=tagv&max=100")).body) == 31


async def test_a_renamed_name_is_found_at_once() -> None:
    world = await with_names()
    number = await world.uid(Kind.METRIC, "old")
    said = await world.ask("POST", "/api/uid/rename", {"metric": "old", "name": "new"})
    assert (said.body, world.dropped) == ({"result": "true"}, 1)
    assert await world.uid(Kind.METRIC, "new") == number
    said = await world.ask("POST", "/api/uid/rename", {"metric": "new", "name": "a b"})
    assert said.body == {"result": "false", "error": 'Invalid metric ("a b"): illegal character:  '}


async def test_metadata_of_a_series_is_made_changed_found_and_deleted() -> None:
    world = await with_names()
    tsuid = (await world.series("m", host="a")).hex().upper()
    path = "/api/uid/tsmeta?m=m{host=a}"
    assert (await world.ask("POST", path, {"notes": "n"})).status == 400
    made = await world.ask("POST", f"{path}&create=true", {"notes": "n", "max": "4.5", "custom": {"k": "v"}})
    assert (made.status, made.body["tsuid"], made.body["max"], made.body["min"]) == (200, tsuid, 4.5, "NaN")
    assert [made.body["metric"]["name"], *(one["name"] for one in made.body["tags"])] == ["m", "host", "a"]
    put = await world.ask("PUT", "/api/uid/tsmeta", {"tsuid": tsuid, "units": "s"})
    assert (put.body["notes"], put.body["units"], put.body["created"]) == ("", "s", NOW_MS // 1000)
    assert (await world.ask("GET", "/api/uid/tsmeta?m=m")).body == [put.body]
    assert (await world.ask("GET", f"/api/uid/tsmeta?tsuid={tsuid}")).body == put.body
    assert (await world.ask("DELETE", "/api/uid/tsmeta", {"tsuid": tsuid})).status == 204
    assert (await world.ask("GET", "/api/uid/tsmeta?m=m")).body == []


async def test_new_names_are_described_where_that_is_wanted() -> None:
    store = MemoryStore(lambda: NOW_MS)
    await store.create_tables(TABLES)
    uids = Uids(store, "tsdb-uid", Widths(), describe=lambda kind: json.dumps({"type": kind.name}).encode())
    [number] = (await uids.find_or_assign(Kind.TAGK, [b"host"])).values()
    assert isinstance(number, bytes)
    rows = await store.get("tsdb-uid", [number], columns=[Kind.TAGK.meta_column])
    assert rows[number][0].value == b'{"type": "TAGK"}'
    await uids.find_or_assign(Kind.TAGK, [b"host"])
    assert store.statistics()["put"] == 1
