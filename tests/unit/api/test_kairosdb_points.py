"""The recorded puts of KairosDB's REST API as put lines, and their errors."""

import gzip
import json
import sys
from typing import Any

import msgspec
import pytest

from tests.kairosdb_series import recorded
from tsd.api.heroic import parse_write
from tsd.api.kairosdb.points import parse_body
from tsd.codec.kairosdb.keys import STRING
from tsd.codec.kairosdb.values import encode_text
from tsd.codec.kairosline import is_text_line
from tsd.codec.putline import NameRules, parse_put
from tsd.codec.text import decode_number
from tsd.codec.textline import parse_text_line
from tsd.errors import BadLine, Refused

# What differs from KairosDB, and why (docs/kairosdb.md).
DIFFERENT = {
    "comments": "they may be anywhere",
    "a datapoint with a null type": "null is no type",
    "timestamp 0": "put lines have no time 0",
    "timestamp too large": "KairosDB takes any time",
    "empty body": "the endpoint answers it",
    "space": "the endpoint answers it",
    "skip_validate without tags": "series have tags",
    "charset latin-1 is not heeded": "the charset is heeded",
    "bytes that are no UTF-8": "names are ISO-8859-1",
    "a datapoint of type long with text": "points after a bad one are stored",
    "application/gzip of what is not": "the connection answers it",
    "Content-Encoding gzip of what is not": "the connection answers it",
    "gzip cut short": "the connection answers it",
}
OWN_WORDS = ("metric[", "Unregistered data point type", "duplicate key")  # messages of KairosDB, not of Java or Gson


def cases() -> list[dict[str, Any]]:
    return [
        case
        for case in recorded()["wire"]
        if "stored" in case and case.get("request", {}).get("path") == "/api/v1/datapoints"
    ]


def body_of(request: dict[str, Any]) -> bytes:
    if "body" in request:
        return str(request["body"]).encode()
    body = bytes.fromhex(request["body_hex"])
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def stored(lines: bytes) -> list[list[Any]]:
    """Points as the vectors show them."""
    found: dict[str, list[list[Any]]] = {}
    for line in lines.splitlines():
        put = parse_put(line, NameRules())
        tags = json.dumps({tagk.decode("latin-1"): [tagv.decode("latin-1")] for tagk, tagv in put.tags})
        time_ms = put.time if put.time >= 1 << 32 else put.time * 1000
        found.setdefault(tags, []).append([time_ms, decode_number(put.flags, put.value)])
    return [["number", json.loads(tags), sorted(points)] for tags, points in found.items()]


def test_most_recorded_puts_are_judged() -> None:
    assert len(DIFFERENT) < 0.2 * len(cases())


@pytest.mark.parametrize("case", [case for case in cases() if case["name"] not in DIFFERENT], ids=lambda c: c["name"])
def test_recorded_put_is_taken(case: dict[str, Any]) -> None:
    parsed = parse_body(body_of(case["request"]))
    errors = [str(error).removeprefix("illegal argument: ") for one in parsed.slices for error in one.refused.values()]
    has_text = any(kind == "text" for kind, _, _ in case["stored"])
    assert bool(errors) == (case["status"] != 204 or has_text), errors
    wanted = json.loads(case["answer"])["errors"] if case["status"] == 400 and case.get("answer") else []
    assert all(str(error).startswith(OWN_WORDS) is False or error in errors for error in wanted), (errors, wanted)
    numbers = [[kind, tags, sorted(points)] for kind, tags, points in case["stored"] if kind == "number"]
    if case["name"] != "name a number":  # its points were asked for by another name
        assert stored(b"".join(one.lines for one in parsed.slices)) == numbers


def string_cells() -> list[dict[str, Any]]:
    """Recorded bodies of which a real KairosDB stored strings."""
    kind = STRING.encode().hex()
    return [
        case | {"texts": {value for key, _, value, *_ in case["data_points"] if kind in key}}
        for case in recorded()["storage"]
        if "body" in case and kind in str(case["data_points"])
    ]


@pytest.mark.parametrize("case", string_cells(), ids=lambda case: case["metric"])
def test_recorded_strings_are_taken_where_tables_store_them(case: dict[str, Any]) -> None:
    parsed = parse_body(str(case["body"]).encode(), has_texts=True)
    assert not any(one.refused for one in parsed.slices)
    lines = [line for one in parsed.slices if is_text_line(one.lines) for line in one.lines.splitlines()]
    texts = {encode_text(parse_text_line(line, NameRules()).text).hex() for line in lines}
    if "in one batch" in case["name"]:  # Cassandra kept one of two at one place
        assert texts > case["texts"]
    else:
        assert texts == case["texts"]


def lines_of(body: bytes, *, has_all: bool) -> tuple[set[bytes], list[bytes]]:
    """The lines of a body on tables with or without texts and times to live, and what is kept of its other points."""
    parsed = parse_body(body, has_ttl=has_all, has_texts=has_all)
    lines = {line for one in parsed.slices for line in one.lines.splitlines()}
    return lines, [text for one in parsed.slices for number in one.refused for text in parsed.kept(one, number)]


def bodies_of_kept(texts: list[bytes]) -> list[bytes]:
    """The bodies that a replay sends."""
    pairs = [text.partition(b" ") for text in texts]
    assert {path for path, _, _ in pairs} <= {b"api/datapoints"}
    return [body for _, _, body in pairs if body]


KEPT_BYTES = 32 << 10  # of one refused line (docs/limits.md)
OTHER_BODIES = [
    b'{"name":"m","tags":{"a":"b"},"ttl":60,"datapoints":[[1356998400000,1],[1356998400500,2.50]]}',
    b'{\n "name": "m",\n "tags": {"a": "b"},\n "datapoints": [\n[1356998400000, 1],\n[1356998400500, "x\\ny"]\n]\n}',
    b'{"name":"m","tags":{"a":"b"},"timestamp":1356998400000,"value":"text","datapoints":[[1356998401000,7]]}',
    b"{name: 'm', tags: {a: b}, ttl: 5, datapoints: [[1356998400000, 1.0], [1356998401000, x]]}",
    b'{"name":"m","tags":{"a":"b"},"type":"string","datapoints":[[1356998400000,1],[1356998401000,2,"long"]]}',
    b'{"name":"m","tags":{"a":"\xc3\xbc"},"type":"string","timestamp":1356998400000,"value":1.10}',
    b'[{"name":"m","tags":{"a":"b"},"datapoints":[[1356998400000,"x"]]},{"name":"n","ttl":5,"tags":{"a":"b"}},',
]


@pytest.mark.parametrize(
    "body",
    [*(str(case["request"]["body"]).encode() for case in cases() if "body" in case["request"]), *OTHER_BODIES],
)
def test_kept_points_are_those_without_a_line(body: bytes) -> None:
    first, kept = lines_of(body, has_all=False)
    assert not any(b"\n" in text for text in kept)
    again = [lines_of(one, has_all=True) for one in bodies_of_kept(kept)]
    assert first.union(*(lines for lines, _ in again)) == lines_of(body, has_all=True)[0]


def test_kept_points_of_a_long_metric_are_whole() -> None:
    metric = {"name": "m", "tags": {"host": "a"}, "ttl": 60}
    points = [[1_356_998_400_000 + at, at] for at in range(10_000)]
    _, kept = lines_of(msgspec.json.encode({**metric, "datapoints": points}), has_all=False)
    assert max(map(len, kept)) <= KEPT_BYTES
    found = [msgspec.json.decode(body) for body in bodies_of_kept(kept)]
    assert [point for one in found for point in one.pop("datapoints")] == points
    assert all(one == metric for one in found)


def test_each_kept_point_of_a_long_metric_is_in_one_text() -> None:
    """Regression: the point that is not in `datapoints` was in each text, and a replay of one wrote it again."""
    points = [[1_356_998_400_000 + at, at] for at in range(5_000)]
    metric = {"name": "m", "tags": {"host": "a"}, "ttl": 60, "timestamp": 1_356_998_300_000, "value": 7}
    _, kept = lines_of(msgspec.json.encode({**metric, "datapoints": points}), has_all=False)
    assert len(kept) > 2
    assert sum(b"1356998300000" in text for text in kept) == 1
    assert len({line for body in bodies_of_kept(kept) for line in lines_of(body, has_all=True)[0]}) == 5_001


def test_kept_text_of_a_stored_point_lacks_it() -> None:
    body = b'{"name":"m","tags":{"a":"b"},"timestamp":1356998400000,"value":1,"datapoints":5}'
    lines, kept = lines_of(body, has_all=False)
    assert (len(lines), bodies_of_kept(kept)) == (1, [b'{"name":"m","tags":{"a":"b"},"datapoints":5}'])


def test_kept_point_is_cut_if_its_names_are_too_long() -> None:
    metric = {"name": "m" * 60_000, "tags": {"host": "a"}, "datapoints": [[1, 1]] * 1000}
    _, kept = lines_of(msgspec.json.encode(metric), has_all=False)
    assert len(kept) == 1000
    assert len(kept[0]) > KEPT_BYTES
    assert all(text is kept[0] for text in kept)  # their names together have 60 MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tagv", "points"),
    [("m" * 60_000, "a", 20_000), ("m", "a" * 60_000, 20_000), ("m", "a", 600_000)],
    ids=["long name", "long tag", "many points"],
)
def test_a_body_whose_points_take_much_memory_is_refused(name: str, tagv: str, points: int) -> None:
    data, tags = [[1_356_998_400_500, 1]] * points, {"host": tagv}
    kairosdb = msgspec.json.encode([{"name": name, "tags": tags, "datapoints": data}])
    heroic = msgspec.json.encode({"series": {"key": name, "tags": tags}, "data": {"type": "points", "data": data}})
    for refused in (lambda: parse_body(kairosdb), lambda: parse_write(heroic, resource_tags=None)):
        with pytest.raises(Refused) as error:
            refused()
        assert error.value.status == 413


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="since Python 3.14 members that are not read have no limit")
def test_deep_nesting_is_a_mistake_of_the_client() -> None:
    """Regression: it was an internal error, with status 500."""
    [part] = parse_body(b'[{"name":"m","timestamp":1,"value":1,"tags":{"a":"b"},"x":%b}]' % DEEP).slices
    assert "nested" in str(part.refused[0])
    series, data = b'{"key":"m","tags":{"a":"b"}}', b'{"type":"points","data":[]}'
    with pytest.raises(BadLine, match="nested"):
        parse_write(b'{"series":%b,"data":%b,"x":%b}' % (series, data, DEEP), resource_tags=None)


def test_deep_nesting_in_a_refused_metric_costs_this_metric_only() -> None:
    """Regression: on Python 3.14 it was an internal error."""
    [part] = parse_body(b'[{"name":"m","timestamp":1,"value":1,"tags":{"a":"b"},"x":%b}]' % DEEP).slices
    assert list(part.refused) == [0]


def test_a_time_of_thousands_of_digits_costs_its_point_only() -> None:
    """Regression: it was an internal error, with status 500, and no point was stored."""
    body = b'[{"name":"m","tags":{"host":"a"},"datapoints":[[%b,1],[1356998400500,2]]}]' % (b"1" * 5000)
    [part] = parse_body(body).slices
    assert list(part.refused) == [0]
    assert part.lines == b"put m 1356998400500 2 host=a\n"


def test_a_name_that_no_table_holds_costs_its_points_only() -> None:
    metric = {"tags": {"host": "a"}, "datapoints": [[1_356_998_400_500, 1]]}
    parsed = parse_body(msgspec.json.encode([{**metric, "name": "m" * 70_000}, {**metric, "name": "good"}]))
    assert [len(one.refused) for one in parsed.slices] == [1]
    assert parsed.slices[0].lines == b"put good 1356998400500 1 host=a\n"


def test_errors_repeat_a_part_of_a_long_name() -> None:
    bad = msgspec.json.encode([{"name": "m" * 1_000_000, "tags": {"host": "a"}, "datapoints": [[1, 1]] * 100}])
    errors = [str(error) for one in parse_body(bad).slices for error in one.refused.values()]
    assert len(errors) == 100
    assert sum(map(len, errors)) < len(bad)
