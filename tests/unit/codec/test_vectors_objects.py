"""Notes, histograms, rollups, metadata and trees as OpenTSDB stored them (`storage_vectors.json`)."""

import json
import math

import pytest

from tests.cases import all_of
from tests.unit.codec.codec_vectors import VECTORS, Vector, body_of, of_kind, unhex
from tsd.codec.metadata import ROOT, Annotation, Branch, Leaf, Rule, RuleKind, Tree, TsMeta, UidMeta
from tsd.codec.names import Kind, parse_uid
from tsd.codec.opentsdb.annotation import (
    annotation_offset_ms,
    annotation_qualifier,
    annotation_row,
    decode_annotation,
    encode_annotation,
)
from tsd.codec.opentsdb.cell import seconds_qualifier
from tsd.codec.opentsdb.histogram import (
    decode_histogram,
    encode_histogram,
    histogram_offset_ms,
    histogram_qualifier,
    join_value,
    parse_histogram,
    parse_payload,
    split_value,
)
from tsd.codec.opentsdb.meta import (
    NO_COUNT,
    TS_COUNTER,
    TS_META,
    decode_count,
    decode_ts_meta,
    decode_uid_meta,
    encode_ts_meta,
    encode_uid_meta,
)
from tsd.codec.opentsdb.rollup import (
    RollupConfig,
    decode_rollup,
    parse_config,
    rollup_base,
    rollup_qualifier,
    rollup_time,
)
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key, split_key
from tsd.codec.opentsdb.tree import (
    BRANCH,
    TREE,
    branch_row,
    decode_branch,
    decode_leaf,
    decode_rule,
    decode_tree,
    encode_branch,
    encode_leaf,
    encode_rule,
    encode_tree,
    leaf_column,
    rule_column,
    tree_row,
)
from tsd.codec.opentsdb.uid import meta_column
from tsd.codec.putline import NameRules, Tags, base_time, parse_put
from tsd.codec.text import FLOAT, decode_number

COVERED = {
    "test_vectors_lines": "put rejected_put http_put rejected_http_put uid_table uid_name_bytes salted_row",
    "test_vectors_rows": "compaction compaction_of_lines date_tiered_compaction append fsck",
    "test_vectors_objects": "annotation histogram rollup_config rollup ts_meta ts_ctr uid_meta tree",
}


def test_every_kind_of_vector_has_its_test() -> None:
    assert sorted(" ".join(COVERED.values()).split()) == sorted({vector["kind"] for vector in VECTORS})


@all_of(of_kind("annotation"), body_of)
def test_annotation_is_stored_as_by_opentsdb(vector: Vector) -> None:
    body = json.loads(vector["body"])
    note = Annotation(
        body["startTime"],
        body.get("endTime", 0),
        body.get("description", ""),
        body.get("notes", ""),
        body.get("tsuid", ""),
        body.get("custom"),
    )
    series = parse_uid(note.tsuid) if note.tsuid else b""
    qualifier = annotation_qualifier(note.start_time)
    assert annotation_row(KeyLayout(), note.start_time, series).hex() == vector["row_hex"]
    assert qualifier.hex() == vector["qualifier_hex"]
    assert encode_annotation(note).decode() == vector["value_utf8"]
    assert decode_annotation(unhex(vector["value_hex"])) == note
    base = split_key(KeyLayout(), unhex(vector["row_hex"])).base
    if note.start_time != 1357000000:  # divided though it is in seconds: only the value knows its time
        time_ms = note.start_time if note.start_time >= 1 << 32 else note.start_time * 1000
        assert base * 1000 + annotation_offset_ms(qualifier) == time_ms


def line_of(vector: Vector) -> str:
    return str(vector["line"])


@all_of(of_kind("histogram"), line_of)
def test_histogram_is_stored_as_by_opentsdb(vector: Vector) -> None:
    _, _, time, *words = vector["line"].encode().split()
    payload = parse_payload(words[1]) if len(words) == 3 else encode_histogram(parse_histogram(words[0]))
    qualifier = histogram_qualifier(int(time))
    assert (qualifier.hex(), join_value(42, payload).hex()) == (vector["qualifier_hex"], vector["value_hex"])
    assert row_key(KeyLayout(), bytes((0, 0, 2)), base_time(int(time)), bytes((0, 0, 1)) * 2).hex() == vector["row_hex"]
    codec_id, stored = split_value(unhex(vector["value_hex"]))
    read = decode_histogram(stored)
    assert (codec_id, encode_histogram(read)) == (42, stored)
    time_ms = int(time) if int(time) >= 1 << 32 else int(time) * 1000
    assert histogram_offset_ms(qualifier) == time_ms - base_time(int(time)) * 1000


def rollups() -> RollupConfig:
    """The configuration behind the rollup vectors, its members spelled as OpenTSDB's."""
    (vector,) = of_kind("rollup_config")
    spelled = {"default": "defaultInterval", "preAgg": "preAggregationTable"}
    intervals = [
        {spelled.get(name, name): value for name, value in each.items()} for each in vector["config"]["intervals"]
    ]
    return parse_config(json.dumps(vector["config"] | {"intervals": intervals}).encode())


def test_rollup_config() -> None:
    config = rollups()
    assert [interval.per_row for interval in config.intervals] == [60, 36, 24, 32, 52]
    assert (config.default.table, config.default.name) == ("raw", "1m")
    assert (config.id_of("COUNT"), config.interval("1h").pre_aggregate_table) == (1, "pa1h")


def rollup_line(vector: Vector) -> str:
    """A rollup vector as a line; the HTTP body says what one would."""
    if "line" in vector:
        return str(vector["line"])
    body = json.loads(vector["body"])
    tags = " ".join(f"{tagk}={tagv}" for tagk, tagv in body["tags"].items())
    return f"rollup {body['interval']}-{body['aggregator']} {body['metric']} {body['timestamp']} {body['value']} {tags}"


TAGKS = {b"host": bytes((0, 0, 1)), b"_aggregate": bytes((0, 0, 2))}
TAGVS = {name: bytes((0, 0, number)) for number, name in enumerate((b"web01", b"MAX", b"SUM", b"COUNT"), 1)}


def pairs_of(tags: Tags) -> bytes:
    return join_pairs((TAGKS[tagk], TAGVS[tagv]) for tagk, tagv in tags)


@all_of(of_kind("rollup"), rollup_line)
def test_rollup_is_stored_as_by_opentsdb(vector: Vector) -> None:
    what, rest = rollup_line(vector).split(" ", 2)[1:]
    point = parse_put(b"put " + rest.encode(), NameRules())
    flags = FLOAT | 7 if "body" in vector else point.flags  # OpenTSDB's HTTP API always writes doubles
    temporal, _, group_by = what.partition(":") if "-" in what else ("", "", what)
    name, _, aggregator = temporal.partition("-")
    tags = dict(point.tags) | ({b"_aggregate": group_by.upper().encode()} if group_by else {})
    interval = rollups().interval(name) if name else rollups().default
    assert (interval.pre_aggregate_table if group_by else interval.table) == vector["table"]
    key, qualifier = unhex(vector["row_hex"]), unhex(vector["qualifier_hex"])
    base = rollup_base(point.time, interval) if name else base_time(point.time)
    assert row_key(KeyLayout(), bytes((0, 0, 1)), base, pairs_of(tuple(tags.items()))) == key
    if name:
        assert rollup_qualifier(rollups().id_of(aggregator), point.time, interval, flags) == qualifier
        read = decode_rollup(rollups(), qualifier)
        assert (read.aggregator, read.flags) == (aggregator.lower(), flags)
        late = point.time - rollup_time(split_key(KeyLayout(), key).base, interval, read.offset)
        assert 0 <= late < interval.seconds
    else:
        assert seconds_qualifier(point.time - base, flags) == qualifier
    stored = unhex(vector["value_hex"])
    assert decode_number(flags, stored) == decode_number(point.flags, point.value)
    assert "body" in vector or point.value == stored


def test_ts_meta() -> None:
    (vector,) = of_kind("ts_meta")
    meta = TsMeta("000001000001000001", created_s=1795231948)
    read = decode_ts_meta(vector["value_utf8"].encode())
    assert encode_ts_meta(meta).decode() == vector["value_utf8"]
    assert read._replace(max=0.0, min=0.0) == meta._replace(max=0.0, min=0.0)
    assert math.isnan(read.max)
    assert math.isnan(read.min)
    assert f"{vector['family']}:{vector['qualifier']}".encode() == TS_META


def test_ts_counter() -> None:
    (vector,) = of_kind("ts_ctr")
    assert decode_count(unhex(vector["value_hex"])) == 2
    assert decode_count(NO_COUNT) == 1
    assert f"{vector['family']}:{vector['qualifier']}".encode() == TS_COUNTER


def test_uid_meta() -> None:
    (vector,) = of_kind("uid_meta")
    meta = UidMeta(Kind.METRIC, created_s=1795231948)
    assert encode_uid_meta(meta).decode() == vector["value_utf8"]
    assert decode_uid_meta(vector["value_utf8"].encode()) == meta
    assert f"{vector['family']}:{vector['qualifier']}".encode() == meta_column(Kind.METRIC)


PATH = (ROOT, "sys", "cpu", "user")
RULE = Rule(RuleKind.METRIC, tree_id=1, separator="\\.")
TREE_CELLS = [
    (tree_row(1), TREE, encode_tree, decode_tree, Tree("T1", "tree", enabled=True)),
    (tree_row(1), rule_column(0, 0), encode_rule, decode_rule, RULE),
    (branch_row(1, ()), BRANCH, encode_branch, decode_branch, Branch((ROOT,))),
    (branch_row(1, PATH[1:]), BRANCH, encode_branch, decode_branch, Branch(PATH)),
    (branch_row(1, PATH[1:]), leaf_column("web01"), encode_leaf, decode_leaf, Leaf("web01", "000001000001000001")),
]


@pytest.mark.parametrize(
    ("vector", "ours"),
    list(zip(of_kind("tree"), TREE_CELLS, strict=True)),
    ids=["tree", "rule", "root branch", "branch", "leaf"],
)
def test_tree_cell(vector: Vector, ours: tuple) -> None:  # type: ignore[type-arg]
    row, column, encode, decode, value = ours
    name = unhex(vector["qualifier_hex"]) if "qualifier_hex" in vector else vector["qualifier"].encode()
    assert (row.hex(), column) == (vector["row_hex"], b"t:" + name)
    assert encode(value).decode() == vector["value_utf8"]
    assert decode(vector["value_utf8"].encode()) == value
