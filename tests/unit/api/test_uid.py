"""Names over HTTP: suggested, assigned, renamed, described."""

import json

import pytest

from tests.unit.tables.endpoints import NOW_MS, TABLES, World, flushed, make_world
from tsd.api import suggest, uid, uid_meta
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import meta_column
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.series import SeriesTable
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.uids import Uids


async def with_names() -> World:
    world = await make_world()
    meta = uid_meta.endpoints(world.metadata, world.names, world.catalog())
    limit = NewNameLimit(SeriesTable())
    names = uid.routes(world.names, flushed, world.drop_caches, extra=b"", meta=meta, new_names=limit)
    world.endpoints = {**suggest.routes(world.catalog(), max_limit=40), **names}
    return world


@pytest.mark.difference(
    "suggestions",
    topic="metadata",
    theirs="The number of suggestions has no bound",
    ours="It is 100,000 at most",
)
async def test_suggestions_are_limited_by_the_request_and_the_server() -> None:
    world = await with_names()
    for number in range(41):
        await world.uid(Kind.TAGV, f"h{number:02}")
    await world.uid(Kind.TAGK, "h")
    first = [f"h{number:02}" for number in range(41)]
    for query, count in (("", 25), ("&max=0", 25), ("&max=30", 30), ("&max=100", 40)):
        assert (await world.request("GET", f"/api/suggest?type=tagv&q=h{query}")).body == first[:count]
    assert (await world.request("GET", "/api/suggest?type=tagv&q=日")).body == []


async def test_suggestions_begin_with_a_prefix_that_ends_in_the_last_letter() -> None:
    world = await with_names()
    for name in ("aÿz", "b"):
        await world.uid(Kind.METRIC, name)
    assert (await world.request("GET", "/api/suggest?type=metrics&q=aÿ")).body == ["aÿz"]


async def test_renamed_name_is_found_at_once() -> None:
    world = await with_names()
    number = await world.uid(Kind.METRIC, "old")
    response = await world.request("POST", "/api/uid/rename", {"metric": "old", "name": "new"})
    assert (response.body, world.dropped) == ({"result": "true"}, 1)
    assert await world.uid(Kind.METRIC, "new") == number
    response = await world.request("POST", "/api/uid/rename", {"metric": "new", "name": "a b"})
    assert response.body == {"result": "false", "error": 'Invalid metric ("a b"): illegal character:  '}


@pytest.mark.difference(
    "name-given-twice",
    topic="metadata",
    theirs="A name that `/api/uid/assign` is given twice gets its UID and an error: 400",
    ours="It gets its UID: 200",
)
async def test_name_that_is_given_twice_is_assigned_once() -> None:
    world = await with_names()
    response = await world.request("POST", "/api/uid/assign", {"metric": ["m", "m"]})
    assert (response.status, list(response.body), list(response.body["metric"])) == (200, ["metric"], ["m"])
    response = await world.request("GET", "/api/uid/assign?metric=n,n")
    assert (response.status, list(response.body["metric"])) == (200, ["n"])


@pytest.mark.difference("null-texts")
async def test_null_in_place_of_a_text_of_metadata_is_as_if_it_were_absent() -> None:
    world = await with_names()
    uid_ = {"type": "metric", "uid": (await world.uid(Kind.METRIC, "m")).hex()}
    await world.request("POST", "/api/uid/uidmeta", {**uid_, "description": "d", "notes": "n"})
    response = await world.request("POST", "/api/uid/uidmeta", {**uid_, "description": None, "notes": "m"})
    assert (response.body["description"], response.body["notes"]) == ("d", "m")
    response = await world.request("PUT", "/api/uid/uidmeta", {**uid_, "description": None, "notes": "k"})
    assert (response.body["description"], response.body["notes"]) == ("", "k")


async def test_custom_fields_are_texts() -> None:
    """A number or a flag is taken as its text, and null is kept."""
    world = await with_names()
    uid_ = {"type": "metric", "uid": (await world.uid(Kind.METRIC, "m")).hex()}
    sent = {"a": "b", "c": 4, "d": 1.5, "e": True, "f": None}
    response = await world.request("POST", "/api/uid/uidmeta", {**uid_, "custom": sent})
    assert response.body["custom"] == {"a": "b", "c": "4", "d": "1.5", "e": "true", "f": None}
    for wrong in ({"a": []}, {"a": {}}, ["a"]):
        assert (await world.request("POST", "/api/uid/uidmeta", {**uid_, "custom": wrong})).status == 400


async def test_too_many_names_are_refused_before_they_are_looked_at() -> None:
    world = await with_names()
    response = await world.request("POST", "/api/uid/assign", {"metric": ["m"] * 20_000, "tagk": [[]]})
    assert response.status == 413


async def test_series_metadata_lifecycle() -> None:
    world = await with_names()
    tsuid = (await world.series("m", host="a")).hex().upper()
    path = "/api/uid/tsmeta?m=m{host=a}"
    assert (await world.request("POST", path, {"notes": "n"})).status == 400
    made = await world.request("POST", f"{path}&create=true", {"notes": "n", "max": "4.5", "custom": {"k": "v"}})
    assert (made.status, made.body["tsuid"], made.body["max"], made.body["min"]) == (200, tsuid, 4.5, "NaN")
    assert [made.body["metric"]["name"], *(one["name"] for one in made.body["tags"])] == ["m", "host", "a"]
    put = await world.request("PUT", "/api/uid/tsmeta", {"tsuid": tsuid, "units": "s"})
    assert (put.body["notes"], put.body["units"], put.body["created"]) == ("", "s", NOW_MS // 1000)
    assert (await world.request("GET", "/api/uid/tsmeta?m=m")).body == [put.body]
    assert (await world.request("GET", f"/api/uid/tsmeta?tsuid={tsuid}")).body == put.body
    assert (await world.request("DELETE", "/api/uid/tsmeta", {"tsuid": tsuid})).status == 204
    assert (await world.request("GET", "/api/uid/tsmeta?m=m")).body == []


async def test_new_names_get_metadata_if_configured() -> None:
    store = MemoryStore(lambda: NOW_MS)
    await store.create_tables(TABLES)
    uids = Uids(store, "tsdb-uid", Widths(), describe=lambda kind: json.dumps({"type": kind.name}).encode())
    [number] = (await uids.find_or_assign(Kind.TAGK, [b"host"])).values()
    assert isinstance(number, bytes)
    rows = await store.get("tsdb-uid", [number], columns=[meta_column(Kind.TAGK)])
    assert rows[number][0].value == b'{"type": "TAGK"}'
    await uids.find_or_assign(Kind.TAGK, [b"host"])
    assert store.statistics()["put"] == 1
