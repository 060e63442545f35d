"""Lines and names as OpenTSDB stored or refused them, and the put lines of the wire with its replies."""

import json

import pytest

from tests.cases import all_of
from tests.unit.codec.codec_vectors import (
    WIRE,
    Departure,
    Vector,
    body_of,
    check,
    check_names,
    line_of,
    of_kind,
    unhex,
)
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import qualifier_of, split
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key, split_key, tsuid
from tsd.codec.opentsdb.uid import COUNTER_ROW, decode_uid, encode_counter, encode_uid, id_column, name_column
from tsd.codec.putline import NameRules, PutLine, base_time, instant, map_order, parse_put, timestamp
from tsd.codec.text import encode_name, looks_like_integer, parse_double, parse_long
from tsd.errors import BadLine

WRAPPED = (
    "put: illegal argument: bad timestamp=9999999999999 when trying to add value=[1]/0 "
    "to metric={metric}, tags={{{tag}}}"
)
DEPARTURES = {
    "put sys.cpu.user 1356998400.5 8 host=web02": Departure(
        "00000100cf0990000001000002 f60ae140=08",
        "00000150e22700000001000002 f0007d00=08",
        "a fraction of a second must not become a millisecond of 1970",
    ),
    "put sys.cpu.user 9999999999999 1 host=web02": Departure(
        "000001540bd910000001000002 faae5fc0=01",
        WRAPPED.format(metric="sys.cpu.user", tag="host=web02"),
        "its base time does not fit 32 bits: the point would be found in 2014",
    ),
}
WIRE_DEPARTURES = {
    "put wire.a 9999999999999 1 a=b\n": Departure(
        "", WRAPPED.format(metric="wire.a", tag="a=b"), "its base time does not fit 32 bits"
    )
}
NAME_DEPARTURES = {
    "greek.αβγ": Departure("677265656b2e3f3f3f", "refused", "names that differ must not become one"),
    "cjk中": Departure("636a6b3f", "refused", "names that differ must not become one"),
}
HTTP_DEPARTURES = {
    '{"metric":"greek.αβγ","timestamp":1356998421,"value":1,"tags":{"host": "web01"}}': Departure(
        "00000350e22700000001000001 0150=01", "refused", "names that differ must not become one"
    ),
    '{"metric":"cjk中","timestamp":1356998423,"value":1,"tags":{"host": "web01"}}': Departure(
        "00000450e22700000001000001 0170=01", "refused", "names that differ must not become one"
    ),
}


def key_of(point: PutLine, uids: dict[str, dict[str, str]]) -> bytes:
    """The row of a parsed line, by the UIDs that OpenTSDB had handed out."""
    of = {kind: {name: unhex(uid) for name, uid in names.items()} for kind, names in uids.items()}
    pairs = [(of["tagk"][k.decode("latin-1")], of["tagv"][v.decode("latin-1")]) for k, v in point.tags]
    metric = of["metrics"][point.metric.decode("latin-1")]
    return row_key(KeyLayout(), metric, base_time(point.time), join_pairs(pairs))


@pytest.mark.difference(
    "decimal-timestamps",
    topic="points",
    theirs="Dots in a timestamp are removed: `1356998400.5` is stored in June 1970",
    ours="The timestamp is in decimal seconds, whatever the number of decimals",
)
@all_of(of_kind("put"), line_of)
def test_put_is_stored_as_by_opentsdb(vector: Vector) -> None:
    try:
        point = parse_put(vector["line"].encode(), NameRules())
        qualifier = qualifier_of(instant(point.time), point.flags)
        here = f"{key_of(point, vector['uids']).hex()} {qualifier.hex()}={point.value.hex()}"
    except BadLine as exc:
        here = f"put: {exc}"
    stored = f"{vector['row_hex']} {vector['qualifier_hex']}={vector['value_hex']}"
    check(DEPARTURES, vector["line"], stored, here)


@all_of([vector for vector in of_kind("put") if vector["line"] not in DEPARTURES], line_of)
def test_put_reads_back_as_it_was_sent(vector: Vector) -> None:
    sent = parse_put(vector["line"].encode(), NameRules())
    _, series, base = split_key(KeyLayout(), unhex(vector["row_hex"]))
    (point,) = split(unhex(vector["qualifier_hex"]), unhex(vector["value_hex"]))
    assert timestamp(base * 2000 + point.offset_ms * 2 + point.in_ms) == sent.time
    word = vector["line"].split()[3].encode()
    number = parse_long(word) if looks_like_integer(word) else parse_double(word)
    assert (type(point.number), point.number) == (type(number), number)
    uids = {kind: {uid: name for name, uid in names.items()} for kind, names in vector["uids"].items()}
    assert uids["metrics"][series.metric.hex()] == sent.metric.decode()
    assert {(uids["tagk"][k.hex()].encode(), uids["tagv"][v.hex()].encode()) for k, v in series.pairs} == set(sent.tags)


@all_of(of_kind("rejected_put"), line_of)
def test_put_is_refused_with_opentsdbs_words(vector: Vector) -> None:
    with pytest.raises(BadLine) as refused:
        parse_put(vector["line"].encode(), NameRules())
    assert f"put: {refused.value}" == vector["response"]


def is_put(vector: Vector) -> bool:
    """Whether a wire vector is one put line that nothing but its words decides about."""
    return (
        vector["send"].startswith("put ")
        and vector["send"].count("\n") == 1
        and "tsd.mode" not in vector["config"]
        and "unknown metric" not in vector["reply"]
    )


PUTS = [vector for vector in WIRE if is_put(vector)]


def send_of(vector: Vector) -> str:
    return str(vector["send"])


@all_of(PUTS, send_of)
def test_put_line_of_the_wire_gets_its_reply(vector: Vector) -> None:
    config = vector["config"]
    rules = NameRules(
        config.get("tsd.core.tag.allow_specialchars", "").encode(), int(config.get("tsd.storage.max_tags", 8))
    )
    line = vector["send"].encode(vector.get("send_encoding", "utf-8")).removesuffix(b"\n").removesuffix(b"\r")
    try:
        parse_put(line, rules)
        here = ""
    except BadLine as exc:
        here = f"put: {exc}"
    check(WIRE_DEPARTURES, vector["send"], vector["reply"].removesuffix("\n"), here)


@all_of([vector for vector in WIRE if "unknown metric" in (vector["reply"] or "")], send_of)
def test_line_with_unknown_names_is_valid(vector: Vector) -> None:
    assert parse_put(vector["send"].encode().removesuffix(b"\n"), NameRules()).tags


def http_line(body: str) -> bytes:
    """The put line that says what a body of the HTTP API says; raises BadLine for a name no line can say."""
    point = json.loads(body)
    time = point["timestamp"] if isinstance(point["timestamp"], str) else str(int(point["timestamp"]))
    value = point["value"] if isinstance(point["value"], str) else json.dumps(point["value"])
    tags = b" ".join(encode_name(k) + b"=" + encode_name(v) for k, v in point["tags"].items())
    is_float = any(letter in value for letter in ".eE")
    return b" ".join(
        (b"put", encode_name(point["metric"]), time.encode(), (value.strip() if is_float else value).encode(), tags)
    )


@pytest.mark.difference(
    "http-floats",
    topic="points",
    theirs="Floats received over HTTP are stored on 8 bytes",
    ours="They are stored on 4 bytes if that is exact, as over telnet",
)
@all_of(of_kind("http_put"), body_of)
def test_http_put_is_the_same_point(vector: Vector) -> None:
    stored = unhex(vector["qualifier_hex"]), unhex(vector["value_hex"])
    (there,) = split(*stored)
    try:
        point = parse_put(http_line(vector["body"]), NameRules())
    except BadLine:
        check(HTTP_DEPARTURES, vector["body"], f"{vector['row_hex']} {stored[0].hex()}={stored[1].hex()}", "refused")
        return
    (here,) = split(qualifier_of(instant(point.time), point.flags), point.value)
    uids = {kind: unhex(uid) for kind, uid in vector["uids"].items()}
    assert row_key(KeyLayout(), uids["metric"], base_time(point.time), uids["tag_pair"]).hex() == vector["row_hex"]
    # OpenTSDB's HTTP API gives every float 8 bytes, its telnet port 4 where they hold it: the number is the same.
    assert (here.offset_ms, here.in_ms, here.number) == (there.offset_ms, there.in_ms, there.number)
    assert isinstance(there.number, int) or len(there.value) == 8


# JSON strings hold no fractions of seconds for OpenTSDB: a rule of the HTTP API, which knows a string from a number.
HTTP_ONLY = '{"metric":"http.m","timestamp":"1356998415.5","value":1,"tags":{"host": "web01"}}'


@all_of([vector for vector in of_kind("rejected_http_put") if vector["body"] != HTTP_ONLY], body_of)
def test_http_put_that_opentsdb_refuses_is_refused(vector: Vector) -> None:
    with pytest.raises(BadLine):
        parse_put(http_line(vector["body"]), NameRules())


def test_departures_name_vectors() -> None:
    check_names(DEPARTURES, of_kind("put"), line_of)
    check_names(WIRE_DEPARTURES, PUTS, send_of)
    check_names(HTTP_DEPARTURES, of_kind("http_put"), body_of)
    (names,) = of_kind("uid_name_bytes")
    assert set(NAME_DEPARTURES) <= set(names["names"])
    assert HTTP_ONLY in map(body_of, of_kind("rejected_http_put"))


def name_bytes() -> dict[str, str]:
    (vector,) = of_kind("uid_name_bytes")
    return dict(vector["names"])


@pytest.mark.difference(
    "names-beyond-latin-1",
    topic="points",
    theirs="Characters beyond ISO-8859-1 in names are stored as `?`, so that names collide",
    ours="Such names are refused",
)
@pytest.mark.parametrize(("name", "stored"), name_bytes().items(), ids=name_bytes())
def test_name_is_stored_as_by_opentsdb(name: str, stored: str) -> None:
    try:
        here = encode_name(name).hex()
        assert encode_name(name).decode("latin-1") == name
    except BadLine:
        here = "refused"
    check(NAME_DEPARTURES, name, stored, here)


def test_uid_table_after_the_puts() -> None:
    """UIDs in the order OpenTSDB gives them: the metric, then each tag's name and value, tags in a HashMap's order."""
    given: dict[Kind, dict[bytes, bytes]] = {kind: {} for kind in Kind}
    for vector in of_kind("put"):
        if vector["line"] in DEPARTURES:
            continue
        point = parse_put(vector["line"].encode(), NameRules())
        words = [(Kind.METRIC, point.metric)]
        for tagk, tagv in map_order(point.tags):
            words += [(Kind.TAGK, tagk), (Kind.TAGV, tagv)]
        for kind, name in words:
            given[kind].setdefault(name, encode_uid(len(given[kind]) + 1, 3))
    table = {(COUNTER_ROW, id_column(kind), encode_counter(len(names))) for kind, names in given.items()}
    table |= {(name, id_column(kind), uid) for kind, names in given.items() for name, uid in names.items()}
    table |= {(uid, name_column(kind), name) for kind, names in given.items() for name, uid in names.items()}
    (vector,) = of_kind("uid_table")
    assert table == {
        (unhex(cell["row_hex"]), f"{cell['family']}:{cell['qualifier']}".encode(), unhex(cell["value_hex"]))
        for cell in vector["cells"]
    }
    assert [decode_uid(uid) for uid in given[Kind.METRIC].values()] == [1, 2, 3, 4, 5, 6]


def row_of(vector: Vector) -> str:
    return f"{vector['salt_width']} of {vector['salt_buckets']}: {vector['unsalted_row_hex']}"


@all_of(of_kind("salted_row"), row_of)
def test_row_is_salted_as_by_opentsdb(vector: Vector) -> None:
    plain, salted = unhex(vector["unsalted_row_hex"]), unhex(vector["row_hex"])
    layout = KeyLayout(salt_width=vector["salt_width"], salt_buckets=vector["salt_buckets"])
    _, series, base = split_key(KeyLayout(), plain)
    assert row_key(layout, series.metric, base, join_pairs(series.pairs)) == salted
    salt, *rest = split_key(layout, salted)
    assert (salt, *rest) == (salted[: vector["salt_width"]], series, base)
    assert tsuid(layout, salted) == tsuid(KeyLayout(), plain)
