"""/api/put: every recorded request is answered as OpenTSDB did, and what was acknowledged is stored."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.unit.api.parts_of_points import VECTORS, asked, put_of, request_of, told_by, without
from tests.unit.ingest.parts import BASE, SERIES, Parts, going, make_store
from tests.wavering import Fault
from tsd.api import incoming, taking
from tsd.api.put import read_any, read_usual
from tsd.codec.putline import NameRules
from tsd.errors import Refused
from tsd.ingest.disk import Disk

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


@pytest.mark.parametrize("vector", PUTS, ids=name_of)
async def test_a_recorded_request_is_answered_as_opentsdb_did(vector: dict[str, Any], tmp_path: Path) -> None:
    creates = (vector.get("config") or {}).get("tsd.core.auto_create_metrics") == "true"
    async with going(Parts(tmp_path, await make_store(), metrics=creates)) as parts:
        status, told = await told_by(put_of(parts), request_of(vector))
    if vector["body"] == "   ":  # OpenTSDB falls over
        assert (status, told["error"]["message"]) == (400, "Missing request content")
        return
    loose = vector.get("loose", [])
    assert (status, without(told, loose)) == (vector["status"], without(vector["response"], loose))


def point(offset: int = 0, value: object = 1, **members: object) -> dict[str, object]:
    return {"metric": "m", "timestamp": BASE + offset, "value": value, "tags": {"host": "a"}, **members}


async def test_points_are_on_disk_when_they_are_acknowledged_and_stored_when_sync_is(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        assert await told_by(put, asked([point(), point(1, "2.50")])) == (204, "")
        assert parts.journal.synced == 2
        assert b"put m %d 2.50 host=a\n" % (BASE + 1) in next((tmp_path / "journal").glob("*.journal")).read_bytes()
        assert await parts.stored() == {}
        assert await told_by(put, asked(point(2, 3), "sync")) == (204, "")
        assert await parts.stored() == {
            (SERIES, BASE * 1000): 1,
            (SERIES, (BASE + 1) * 1000): 2.5,
            (SERIES, (BASE + 2) * 1000): 3,
        }


async def test_what_the_store_does_not_take_is_told_and_stored_later(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        await told_by(put, asked(point(), "sync"))
        parts.store.always = Fault.REFUSED
        status, told = await told_by(put, asked([point(1), point(2, "x")], "sync&details"))
        assert (status, told["success"], told["failed"]) == (400, 0, 2)
        status, told = await told_by(put, asked([point(1)], "sync&details"))
        assert (status, told["success"], told["failed"]) == (200, 0, 1)
        assert told["errors"][0]["datapoint"] == point(1, "1")
        assert told["errors"][0]["error"].startswith("Storage exception: ")
        assert (await told_by(put, asked([point(1)], "sync")))[0] == 400
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 2


async def test_a_store_that_takes_its_time_is_waited_for_as_long_as_was_asked(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, flush=trio.sleep_forever)
        for vector in [v for v in VECTORS if "sync_timeout=50" in v["path"]]:
            status, told = await told_by(put, request_of(vector))
            assert (status, told) == (vector["status"], vector["response"])


async def test_with_a_full_journal_a_sender_is_told_to_come_again(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.gate.hold("the journal is full")
        status, told = await told_by(put_of(parts, patience_s=0.001), asked(point()))
        assert (status, told["error"]) == (
            503,
            {"code": 503, "message": "Please throttle writes", "details": "the journal is full"},
        )
        assert parts.ledger.received == 0


async def test_the_header_tag_is_given_to_points_that_have_no_such_tag(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts, "X-Tag")
        body = [point(), point(1, 2, tags={"dc": "x"})]
        assert await told_by(put, asked(body, "sync", headers={"x-tag": "dc=f"})) == (204, "")
        assert len(parts.rows.table) == 2
        assert {parts.rows.table.text(number).tags for number in (0, 1)} == {b"host=a dc=f", b"dc=x"}  # type: ignore[union-attr]
        status, told = await told_by(put, asked(body, headers={"x-tag": "f"}))
        assert (status, told["error"]["message"]) == (500, "invalid tag: f")


async def test_a_name_that_no_line_can_say_is_refused_and_harms_no_other(tmp_path: Path) -> None:
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
        status, told = await told_by(put_of(parts), asked(odd, "details&sync"))
        assert (status, told["success"], told["failed"]) == (400, 1, 6)
        assert await parts.stored() == {(SERIES, (BASE + 7) * 1000): 1}
        assert parts.ledger.received == 7


@pytest.mark.parametrize("separator", [",", " ,\n "])
async def test_a_large_body_is_read_in_parts_and_none_of_it_taken_if_it_ends_badly(
    separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "SLICE_BYTES", 1000)
    odd = {**point(2000), "extra": [{"a": 1}, {"b": "},{"}]}
    points = [json.dumps(point(offset)) for offset in range(300)]
    points[40] = json.dumps(odd)
    points[50] = json.dumps(point(50, "x"))
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        status, told = await told_by(put, asked("[" + separator.join(points), "details"))
        assert (status, parts.ledger.received) == (400, 0)
        status, told = await told_by(put, asked("[" + separator.join(points) + "]", "details&sync"))
        assert (status, told["success"], told["failed"]) == (400, 299, 1)
        assert told["errors"][0]["datapoint"]["timestamp"] == BASE + 50
        assert len(await parts.stored()) == 299


async def test_points_before_a_part_without_a_good_one_are_on_disk_when_they_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Disk):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, "as the test wants")

    monkeypatch.setattr(incoming, "SLICE_BYTES", 1000)
    body = [point(offset) for offset in range(40)] + [point(offset, "no number") for offset in range(40)]
    async with going(Parts(tmp_path, await make_store())) as parts:
        parts.journal.disk = Refusing()
        status, _ = await told_by(put_of(parts, patience_s=0.01), asked(body))
        assert status == 503
        parts.journal.disk = Disk()
        status, told = await told_by(put_of(parts), asked(body, "summary"))
        assert (status, told["success"], told["failed"]) == (400, 40, 40)
        assert parts.journal.synced == parts.journal.position


async def test_a_body_is_cut_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "SLICE_BYTES", 200)
    pieces = await incoming.read_slices(
        json.dumps([point(offset) for offset in range(100)]).encode(), lambda text: read_any(text, None, NameRules())
    )
    assert sum(piece.size for piece in pieces) == 100
    assert max(piece.size for piece in pieces) < 5


async def test_a_large_body_that_cannot_be_cut_is_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: bytes) -> incoming.Piece:
        return read_any(text, None, NameRules())

    monkeypatch.setattr(incoming, "SLICE_BYTES", 200)
    monkeypatch.setattr(incoming, "WHOLE_BYTES", 2000)
    many = json.dumps([point(offset) for offset in range(100)]).encode()
    assert len(await incoming.read_slices(many, read)) > 20
    for body in (many + b"]", b"[" + b"null," * 1000 + b"null]", many.replace(b'"m"', b'"%s"' % (b"m" * 3000), 1)):
        with pytest.raises(Refused) as refused:
            await incoming.read_slices(body, read)
        assert refused.value.message == incoming.BAD_JSON


async def test_errors_are_kept_of_so_many_points_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "SLICE_BYTES", 200)
    monkeypatch.setattr(incoming, "MOST_REFUSED", 70)
    for module in (incoming, taking):
        monkeypatch.setattr(module, "MOST_SHOWN", 5)
    body = ",".join(["{}"] * 70 + [json.dumps(point(offset)) for offset in range(3)])
    async with going(Parts(tmp_path, await make_store())) as parts:
        put = put_of(parts)
        status, told = await told_by(put, asked(f"[{body},{{}}]", "details"))
        assert (status, parts.ledger.received) == (400, 0)
        status, told = await told_by(put, asked(f"[{body}]", "details"))
        assert (status, told["success"], told["failed"], len(told["errors"])) == (400, 3, 70, 5)
        assert all(error["error"] for error in told["errors"])


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'[{"metric":' + b"[" * 100_000])
async def test_a_body_nested_without_end_is_no_json(body: bytes, tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        status, told = await told_by(put_of(parts), asked(body.decode()))
    assert (status, told["error"]["message"]) == (400, incoming.BAD_JSON)


def test_the_usual_and_the_exact_way_make_the_same_lines() -> None:
    body = json.dumps([point(1), point(2, 2.5), point(3, -1e-7), point(4, 10**17, tags={"é": "ü", "b": "c"})]).encode()
    usual, exact = read_usual(body, None), read_any(body, None, NameRules())
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
def test_anything_unusual_is_looked_at_closely(members: dict[str, object]) -> None:
    assert read_usual(json.dumps([point(**members)]).encode(), None) is None  # type: ignore[arg-type]
