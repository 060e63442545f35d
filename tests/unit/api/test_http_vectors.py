"""What a real OpenTSDB answered to requests about names, notes and trees: the endpoints answer the same."""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tables.endpoints import NOW_MS, World, at_once, flushed, loosened, make_world
from tsd.api import annotation, search, suggest, tree, uid, uid_meta
from tsd.codec.names import Kind
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.series import SeriesTable
from tsd.tables.opentsdb.annotations import AnnotationRows
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.last_points import LastPointReader

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "http_vectors.json").read_text())
OURS = re.compile(r"/(api/)?(suggest|uid|annotation|search|tree|query/last)")
ELSEWHERE = ("jsonp", "json")  # made by the server from an answer


def groups() -> Iterator[Any]:
    """The vectors of each endpoint, in order: what comes first may be what the next one finds."""
    found = [
        vector
        for vector in VECTORS
        if OURS.match(vector["path"])
        and not {"tsd.mode", "tsd.http.request.cors_domains"} & set(vector.get("config", {}))
        and not any(re.search(rf"[?&]{word}\b", vector["path"]) for word in ELSEWHERE)
        and not (vector["path"].startswith("/suggest") and vector["status"] != 200)
    ]
    for name, members in groupby(found, key=lambda vector: OURS.match(vector["path"])[2]):  # type: ignore[index]
        yield pytest.param(list(members), id=name.replace("/", "-"))


@pytest.mark.parametrize("vectors", list(groups()))
async def test_answers_are_opentsdbs(vectors: list[dict[str, Any]]) -> None:
    world = await make_world()
    await world.series("wire.p", a="b")
    if any("/uid/" in vector["path"] for vector in vectors):
        await world.uid(Kind.TAGV, "c")  # as in the recording: its next tag value got the third UID
    world.endpoints = endpoints(world)
    for vector in vectors:
        response = await world.request(vector["method"], vector["path"], vector["body"])
        loose = vector.get("loose", [])
        request = f"{vector['method']} {vector['path']} {vector['body']}"
        assert (response.status, request) == (vector["status"], request)
        assert loosened(response.body, loose) == loosened(vector["response"], loose), request


async def test_numbers_are_assigned_as_texts() -> None:
    """As by OpenTSDB: ports are tag values that programs write as numbers."""
    world = await make_world()
    world.endpoints = endpoints(world)
    response = await world.request("POST", "/api/uid/assign", {"tagv": [8080, 1.5, True]})
    assert (response.status, set(response.body["tagv"])) == (200, {"8080", "1.5", "true"})


async def test_parameters_are_read_if_there_is_no_body() -> None:
    """Whatever the method: conformance/test_bad_requests.py has what OpenTSDB answers."""
    world = await make_world()
    tsuid = (await world.series("wire.p", a="b")).hex().upper()
    world.endpoints = endpoints(world)

    async def request_members(method: str, path: str, *names: str) -> list[Any]:
        response = await world.request(method, path)
        assert response.status == 200, response
        return [response.body[name] for name in names]

    note = f"/api/annotation?start_time=1500000000&tsuid={tsuid}"
    texts = ("description", "notes")
    assert await request_members("POST", f"{note}&description=x&endTime=5", *texts, "endTime") == ["x", "", 0]
    assert await request_members("POST", f"{note}&notes=y&end_time=1500000001", *texts, "endTime") == [
        "x",
        "y",
        1500000001,
    ]
    assert await request_members("PUT", f"{note}&notes=z", *texts, "endTime") == ["", "z", 0]
    name = "/api/uid/uidmeta?uid=000001&type=metric"
    assert await request_members("POST", f"{name}&description=d&custom=c", "description", "custom") == ["d", None]
    assert await request_members("PUT", f"{name}&display_name=n", "description", "displayName") == ["", "n"]
    made = "/api/uid/tsmeta?m=wire.p{a=b}&create=true&units=s&retention=5&max=1.5"
    assert await request_members("POST", made, "tsuid", "units", "retention", "max", "min") == [
        tsuid,
        "s",
        5,
        1.5,
        "NaN",
    ]
    assert await request_members("PUT", f"/api/uid/tsmeta?tsuid={tsuid}&notes=n", "units", "notes") == ["", "n"]
    assert await request_members("POST", "/api/tree?name=T&strict_match=true", "treeId", "strictMatch") == [1, True]
    rule = "/api/tree/rule?treeid=1&level=0&order=0&type=tagk&field=a"
    assert await request_members("PUT", rule, "type", "field") == ["TAGK", "a"]
    assert (await world.request("POST", "/api/annotation")).body["error"]["message"] == "Missing start time"
    missing = (await world.request("PUT", "/api/uid/uidmeta?uid=000001")).body["error"]["message"]
    assert missing == "Missing parameter <code>type</code>"


def endpoints(world: World) -> dict[str, Any]:
    cache = LastPointCache(0)
    cache.slot(bytes((0, 0, 1)), bytes((0, 0, 1, 0, 0, 1)))
    points = LastPointReader(
        DataTable(world.store, "tsdb", world.layout), cache, lambda: NOW_MS, look_back_h=2, cache_ms=None
    )
    catalog = world.catalog(world.finder(cache, look_back_h=2), points)
    meta = uid_meta.endpoints(world.metadata, world.names, catalog)
    return {
        **search.last_routes(catalog, at_once, search.LastRules(exact_back_scans=True)),
        **annotation.routes(AnnotationRows(world.store, "tsdb", world.layout), catalog, lambda: NOW_MS),
        **search.lookup_routes(catalog, at_once),
        **tree.routes(world.trees, catalog),
        **suggest.routes(catalog),
        **uid.routes(
            world.names, flushed, world.drop_caches, extra=b"", meta=meta, new_names=NewNameLimit(SeriesTable())
        ),
    }
