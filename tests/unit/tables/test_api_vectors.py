"""What a real OpenTSDB answered to requests about names, notes and trees: the endpoints answer the same."""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.unit.metadata.asking import NOW_MS, World, at_once, loosened, make_world
from tsd.api import annotation, last, lookup, meta, suggest, tree, uid
from tsd.codec.uid import Kind, Widths
from tsd.metadata.described import SeriesMetas, UidMetas
from tsd.metadata.known import KnownSeries
from tsd.metadata.latest import Latest
from tsd.metadata.notes import Notes
from tsd.metadata.trees import Trees
from tsd.query.last import LastPoints

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "http_vectors.json").read_text())
OURS = re.compile(r"/(api/)?(suggest|uid|annotation|search|tree|query/last)")
ELSEWHERE = ("jsonp", "json")  # what a door makes of an answer


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
        said = await world.ask(vector["method"], vector["path"], vector["body"])
        loose = vector.get("loose", [])
        told = f"{vector['method']} {vector['path']} {vector['body']}"
        assert (said.status, told) == (vector["status"], told)
        assert loosened(said.body, loose) == loosened(vector["response"], loose), told


async def test_without_a_body_the_parameters_say_it() -> None:
    """Whatever the method: conformance/test_bad_requests.py has what OpenTSDB answers."""
    world = await make_world()
    tsuid = (await world.series("wire.p", a="b")).hex().upper()
    world.endpoints = endpoints(world)

    async def told(method: str, path: str, *names: str) -> list[Any]:
        said = await world.ask(method, path)
        assert said.status == 200, said
        return [said.body[name] for name in names]

    note = f"/api/annotation?start_time=1500000000&tsuid={tsuid}"
    texts = ("description", "notes")
    assert await told("POST", f"{note}&description=x&endTime=5", *texts, "endTime") == ["x", "", 0]
    assert await told("POST", f"{note}&notes=y&end_time=1500000001", *texts, "endTime") == ["x", "y", 1500000001]
    assert await told("PUT", f"{note}&notes=z", *texts, "endTime") == ["", "z", 0]
    name = "/api/uid/uidmeta?uid=000001&type=metric"
    assert await told("POST", f"{name}&description=d&custom=c", "description", "custom") == ["d", None]
    assert await told("PUT", f"{name}&display_name=n", "description", "displayName") == ["", "n"]
    made = "/api/uid/tsmeta?m=wire.p{a=b}&create=true&units=s&retention=5&max=1.5"
    assert await told("POST", made, "tsuid", "units", "retention", "max", "min") == [tsuid, "s", 5, 1.5, "NaN"]
    assert await told("PUT", f"/api/uid/tsmeta?tsuid={tsuid}&notes=n", "units", "notes") == ["", "n"]
    assert await told("POST", "/api/tree?name=T&strict_match=true", "treeId", "strictMatch") == [1, True]
    rule = "/api/tree/rule?treeid=1&level=0&order=0&type=tagk&field=a"
    assert await told("PUT", rule, "type", "field") == ["TAGK", "a"]
    assert (await world.ask("POST", "/api/annotation")).body["error"]["message"] == "Missing start time"
    missing = (await world.ask("PUT", "/api/uid/uidmeta?uid=000001")).body["error"]["message"]
    assert missing == "Missing parameter <code>type</code>"


def endpoints(world: World) -> dict[str, Any]:
    store, uids, widths = world.store, world.uids, Widths()
    pages = meta.endpoints(
        uids,
        UidMetas(store, "tsdb-uid"),
        SeriesMetas(store, "tsdb-meta", widths),
        widths,
        lambda: NOW_MS // 1000,
    )
    live = Latest(0)
    live.slot(bytes((0, 0, 1)), bytes((0, 0, 1, 0, 0, 1)))
    known = KnownSeries(
        store,
        world.layout,
        live,
        lambda: NOW_MS // 1000,
        data_table="tsdb",
        uid_table="tsdb-uid",
        meta_table=None,
        look_back_h=2,
        trust_s=None,
    )
    points = LastPoints(store, "tsdb", world.layout, live, lambda: NOW_MS, look_back_h=2, trust_ms=None)
    return {
        **last.routes(last.Answers(known, points, uids, widths, exact_back_scans=True, written=at_once)),
        **annotation.routes(Notes(store, "tsdb", world.layout), world.layout, lambda: NOW_MS),
        **lookup.routes(known, uids, widths, at_once),
        **tree.routes(Trees(store, "tsdb-tree", lambda: NOW_MS // 1000), uids, UidMetas(store, "tsdb-uid"), widths),
        **suggest.routes(store, "tsdb-uid"),
        **uid.routes(store, "tsdb-uid", uids, world.drop_caches, extra=b"", meta=pages),
    }
