"""/api/put: recorded requests are answered as by OpenTSDB, and acknowledged points are stored."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.api.put_parts import VECTORS, call_endpoint, make_request, put_of, recorded_request, without
from tests.unit.ingest.parts import BASE, SERIES, Parts, going, make_store
from tsd.api.points import BAD_JSON, BodyLimits, BodySlice, parse_slices
from tsd.api.put import parse_any, parse_usual
from tsd.codec.putline import NameRules
from tsd.errors import Refused
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.segment import Block, read_pieces

pytestmark = layouts.on_all
PUTS = [
    vector
    for vector in VECTORS
    if vector["path"].partition("?")[0].rstrip("/") in ("/api/put", "/api/put/extra")
    and vector["method"] != "OPTIONS"
    and vector["status"] != 404
    and not any(word in vector["path"] for word in ("serializer", "jsonp", "sync_timeout=50"))
    and "Origin" not in (vector.get("headers") or {})
    and not (vector.get("note") or "").startswith("body of 9480 bytes")
]


def name_of(vector: dict[str, Any]) -> str:
    return f"{PUTS.index(vector)} {vector['method']} {vector['path']}"


@pytest.mark.difference(
    "blank-put-body",
    topic="http",
    theirs="A put with a blank body is answered with 500",
    ours="It is answered with 400",
)
@pytest.mark.parametrize("vector", PUTS, ids=name_of)
async def test_recorded_request_is_answered_as_by_opentsdb(vector: dict[str, Any], tmp_path: Path) -> None:
    creates = (vector.get("config") or {}).get("tsd.core.auto_create_metrics") == "true"
    async with going(Parts(tmp_path, await make_store(), metrics=creates)) as parts:
        status, reply = await call_endpoint(put_of(parts), recorded_request(vector))
    if vector["body"] == "   ":  # OpenTSDB fails with an internal error
        assert (status, reply["error"]["message"]) == (400, "Missing request content")
        return
    loose = vector.get("loose", [])
    assert (status, without(reply, loose)) == (vector["status"], without(vector["response"], loose))


def point(offset: int = 0, value: object = 1, **members: object) -> dict[str, object]:
    return {"metric": "m", "timestamp": BASE + offset, "value": value, "tags": {"host": "a"}, **members}


@pytest.mark.difference(
    "put-acknowledgement",
    topic="http",
    theirs="A put is answered before anything is stored",
    ours="It is answered when its points are on disk, and with 503, which agents retry, if that takes more than 10 s",
)
async def test_acknowledged_points_are_on_disk_and_stored_with_sync(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        assert await call_endpoint(put, make_request([point(), point(1, "2.50")])) == (204, "")
        assert parts.journal.synced == 2
        [segment] = (tmp_path / "journal").glob("*.journal")
        [block] = read_pieces(segment)
        assert isinstance(block, Block)
        assert b"put m %d 2.50 host=a\n" % (BASE + 1) in block.text
        assert await parts.stored() == {}
        assert await call_endpoint(put, make_request(point(2, 3), "sync")) == (204, "")
        assert await parts.stored() == {
            (SERIES, BASE * 1000): 1,
            (SERIES, (BASE + 1) * 1000): 2.5,
            (SERIES, (BASE + 2) * 1000): 3,
        }


async def test_points_the_store_refuses_are_reported_and_stored_later(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        await call_endpoint(put, make_request(point(), "sync"))
        parts.store.always = Fault.REFUSED
        status, reply = await call_endpoint(put, make_request([point(1), point(2, "x")], "sync&details"))
        assert (status, reply["success"], reply["failed"]) == (400, 0, 2)
        status, reply = await call_endpoint(put, make_request([point(1)], "sync&details"))
        assert (status, reply["success"], reply["failed"]) == (200, 0, 1)
        assert reply["errors"][0]["datapoint"] == point(1, "1")
        assert reply["errors"][0]["error"].startswith("Storage exception: ")
        assert (await call_endpoint(put, make_request([point(1)], "sync")))[0] == 400
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 2


@pytest.mark.difference(
    "short-sync-timeout",
    topic="http",
    theirs="A put with `sync` waits for a write buffer of one second, so that a shorter `sync_timeout` always fails",
    ours="The points are written at once",
)
async def test_sync_timeout_limits_the_wait_for_the_store(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, flush=trio.sleep_forever)
        for vector in [v for v in VECTORS if "sync_timeout=50" in v["path"]]:
            status, reply = await call_endpoint(put, recorded_request(vector))
            assert (status, reply) == (vector["status"], vector["response"])


@pytest.mark.difference("put-acknowledgement")
async def test_full_journal_answers_503(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.backpressure.hold("the journal is full")
        status, reply = await call_endpoint(put_of(parts, timeout_s=0.001), make_request(point()))
        assert (status, reply["error"]) == (
            503,
            {"code": 503, "message": "Please throttle writes", "details": "the journal is full"},
        )
        assert parts.ledger.received == 0


@pytest.mark.difference(
    "header-tag",
    topic="http",
    theirs="`tsd.http.header_tag` is read but not applied",
    ours="It is applied",
)
async def test_header_tag_is_added_to_points_without_it(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, "X-Tag")
        body = [point(), point(1, 2, tags={"dc": "x"})]
        assert await call_endpoint(put, make_request(body, "sync", headers={"x-tag": "dc=f"})) == (204, "")
        assert len(parts.open_window.table) == 2
        assert {parts.open_window.table.text(number).tags for number in (0, 1)} == {b"host=a dc=f", b"dc=x"}  # type: ignore[union-attr]
        status, reply = await call_endpoint(put, make_request(body, headers={"x-tag": "f"}))
        assert (status, reply["error"]["message"]) == (500, "invalid tag: f")


async def test_name_with_separators_is_refused_without_harm_to_others(tmp_path: Path) -> None:
    odd = [
        point(metric="m 1 1 a=b\nput x"),
        point(metric="日"),
        point(tags={"a=b c": "d"}),
        point(tags={"a": "b\nput m 1 1 x=y"}),
        point(5, "1\n"),
        point(6, '7"'),
        point(7),
    ]
    async with going(Parts(tmp_path, await make_store())) as parts:
        status, reply = await call_endpoint(put_of(parts), make_request(odd, "details&sync"))
        assert (status, reply["success"], reply["failed"]) == (400, 1, 6)
        assert await parts.stored() == {(SERIES, (BASE + 7) * 1000): 1}
        assert parts.ledger.received == 7


@pytest.mark.parametrize("timestamp", ["x", 1e30, float("nan")])
async def test_timestamp_that_is_no_number_is_named(timestamp: object, tmp_path: Path) -> None:
    """Regression: the error had the text, and not the member that it is of."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        request = make_request(json.dumps([point(), {**point(1), "timestamp": timestamp}]), "details")
        status, reply = await call_endpoint(put_of(parts), request)
        assert status == 400
        assert "timestamp: " in reply["error"]["details"]


@pytest.mark.parametrize("separator", [",", " ,\n "])
async def test_large_body_with_a_bad_end_stores_nothing(separator: str, tmp_path: Path) -> None:
    odd = {**point(2000), "extra": [{"a": 1}, {"b": "},{"}]}
    points = [json.dumps(point(offset)) for offset in range(300)]
    points[40] = json.dumps(odd)
    points[50] = json.dumps(point(50, "x"))
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, limits=BodyLimits(slice_bytes=1000))
        status, reply = await call_endpoint(put, make_request("[" + separator.join(points), "details"))
        assert (status, parts.ledger.received, parts.ledger.refused.total()) == (400, 1, 1)
        status, reply = await call_endpoint(put, make_request("[" + separator.join(points) + "]", "details&sync"))
        assert (status, reply["success"], reply["failed"]) == (400, 299, 1)
        assert reply["errors"][0]["datapoint"]["timestamp"] == BASE + 50
        assert len(await parts.stored()) == 299


@pytest.mark.difference(
    "separators-in-names",
    topic="points",
    theirs="Names over HTTP may have blanks and `=` of `tsd.core.tag.allow_specialchars`, whose ends are trimmed",
    ours="Such names are refused, because a put line cannot have them",
)
@pytest.mark.parametrize("name", ["G1 Eden", "a=b", "a\nb"])
async def test_separators_of_lines_are_refused_in_names(name: str, tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, special=b" =\n")
        bad = [point(metric=name), point(tags={name: "a"}), point(tags={"host": name})]
        status, reply = await call_endpoint(put, make_request([*bad, point()], "details&sync"))
        assert (status, reply["success"], reply["failed"]) == (400, 1, 3)
        assert all(error["error"].startswith("Invalid name: ") for error in reply["errors"])
        assert len(await parts.stored()) == 1


@pytest.mark.parametrize("body", ['[{"metric":', "m=1", "[1]"])
async def test_body_that_is_refused_whole_counts_as_a_refused_line(body: str, tmp_path: Path) -> None:
    """Regression: no count and no record told that an agent's bodies are unreadable."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        for blank in ("", " \n", "[]"):
            assert (await call_endpoint(put, make_request(blank)))[0] == 400
        assert parts.ledger.received == 0
        assert (await call_endpoint(put, make_request(body)))[0] == 400
        assert (parts.ledger.received, parts.ledger.refused.total()) == (1, 1)


async def test_points_before_a_slice_of_bad_ones_are_on_disk(
    tmp_path: Path,
) -> None:
    class Refusing(Disk):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, "as the test wants")

    limits = BodyLimits(slice_bytes=1000)
    body = [point(offset) for offset in range(40)] + [point(offset, "no number") for offset in range(40)]
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.journal.disk = Refusing()
        status, _ = await call_endpoint(put_of(parts, timeout_s=0.01, limits=limits), make_request(body))
        assert status == 503
        parts.journal.disk = Disk()
        status, reply = await call_endpoint(put_of(parts, limits=limits), make_request(body, "summary"))
        assert (status, reply["success"], reply["failed"]) == (400, 40, 40)
        assert parts.journal.synced == parts.journal.position


async def test_body_is_cut_between_points() -> None:
    body = json.dumps([point(offset) for offset in range(100)]).encode()
    slices = await parse_slices(body, lambda text: parse_any(text, None, NameRules()), BodyLimits(slice_bytes=200))
    assert sum(one.size for one in slices) == 100
    assert max(one.size for one in slices) < 5


async def test_large_body_without_a_cut_is_refused() -> None:
    def read(text: bytes) -> BodySlice:
        return parse_any(text, None, NameRules())

    limits = BodyLimits(slice_bytes=200, whole_bytes=2000)
    many = json.dumps([point(offset) for offset in range(100)]).encode()
    assert len(await parse_slices(many, read, limits)) > 20
    for body in (many + b"]", b"[" + b"null," * 1000 + b"null]", many.replace(b'"m"', b'"%s"' % (b"m" * 3000), 1)):
        with pytest.raises(Refused) as refused:
            await parse_slices(body, read, limits)
        assert refused.value.message == BAD_JSON


@pytest.mark.difference(
    "put-error-limit",
    topic="limits",
    theirs="`/api/put?details` reports every bad point",
    ours="It reports the first 10,000. A request with over 50,000 points without any content is refused as a whole",
)
async def test_number_of_errors_is_limited(tmp_path: Path) -> None:
    limits = BodyLimits(slice_bytes=200, errors=70, shown_errors=5)
    body = ",".join(["{}"] * 70 + [json.dumps(point(offset)) for offset in range(3)])
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, limits=limits)
        status, reply = await call_endpoint(put, make_request(f"[{body},{{}}]", "details"))
        assert (status, parts.ledger.received, parts.ledger.refused.total()) == (400, 1, 1)
        status, reply = await call_endpoint(put, make_request(f"[{body}]", "details"))
        assert (status, reply["success"], reply["failed"], len(reply["errors"])) == (400, 3, 70, 5)
        assert all(error["error"] for error in reply["errors"])


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'[{"metric":' + b"[" * 100_000])
async def test_endlessly_nested_body_is_refused(body: bytes, tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        status, reply = await call_endpoint(put_of(parts), make_request(body.decode()))
    assert (status, reply["error"]["message"]) == (400, BAD_JSON)


def test_usual_and_general_parsers_agree() -> None:
    body = json.dumps([point(1), point(2, 2.5), point(3, -1e-7), point(4, 10**17, tags={"é": "ü", "b": "c"})]).encode()
    usual, exact = parse_usual(body, None), parse_any(body, None, NameRules())
    assert usual is not None
    assert usual.lines == exact.lines
    assert list(usual.points) == list(exact.points) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "members",
    [
        {"metric": "a b"},
        {"metric": "a\n"},
        {"value": "1"},
        {"value": [1]},
        {"timestamp": 1.5},
        {"timestamp": "1"},
        {"timestamp": 0},
        {"tags": {"a": "b=c"}},
        {"tags": {"a": "b c"}},
        {"tags": {"a": 1}},
        {"metric": "日"},
        {"tags": None},
    ],
    ids=str,
)
def test_unusual_point_is_left_to_the_general_parser(members: dict[str, object]) -> None:
    assert parse_usual(json.dumps([point(**members)]).encode(), None) is None  # type: ignore[arg-type]
