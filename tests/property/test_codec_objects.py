"""Laws of what is no point: JSON and other objects, and bytes of any sort given to any decoder."""

import contextlib
import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.codec.metadata import Annotation, Branch, Leaf, Rule, RuleKind, Tree, TsMeta, UidMeta
from tsd.codec.names import Kind, Widths, parse_uid
from tsd.codec.opentsdb.annotation import annotation_offset_ms, decode_annotation, encode_annotation
from tsd.codec.opentsdb.cell import (
    Point,
    kind_of,
    split,
    split_append,
    split_qualifier,
)
from tsd.codec.opentsdb.histogram import (
    decode_histogram,
    decode_varint,
    encode_histogram,
    encode_varint,
    histogram_offset_ms,
    join_value,
    make_histogram,
    parse_histogram,
    parse_payload,
    split_value,
)
from tsd.codec.opentsdb.meta import (
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
)
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key, split_tsuid
from tsd.codec.opentsdb.tree import (
    decode_branch,
    decode_leaf,
    decode_rule,
    decode_tree,
    encode_branch,
    encode_leaf,
    encode_rule,
    encode_tree,
)
from tsd.codec.opentsdb.uid import decode_counter
from tsd.codec.points import Bucket, Histogram
from tsd.codec.text import FLOAT, decode_object, encode_object, show_double
from tsd.errors import BadConfig, BadLine, CorruptRow

law = settings(deadline=None)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
doubles = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=()), max_size=12)  # surrogates too: JSON can name them one by one
customs = st.none() | st.dictionaries(texts, st.none() | texts, max_size=14)


notes = st.builds(Annotation, longs, longs, texts, texts, texts, customs)
uid_metas = st.builds(UidMeta, st.sampled_from(Kind), texts, texts, texts, longs, customs)
ts_metas = st.builds(
    TsMeta, texts, texts, texts, texts, longs, customs, texts, texts, longs, st.floats(allow_nan=False), doubles
)
trees = st.builds(Tree, texts, texts, texts, st.booleans(), longs, st.booleans(), st.booleans())
tree_rules = st.builds(
    Rule, st.sampled_from(RuleKind), longs, longs, longs, texts, texts, texts, texts, texts, texts, longs, texts
)
branches = st.builds(Branch, st.lists(texts, min_size=1, max_size=12).map(tuple))
leaves = st.builds(Leaf, texts, texts)
singles = st.floats(width=32, allow_nan=False)
buckets = st.builds(Bucket, singles, singles, longs)
histograms = st.builds(make_histogram, st.lists(buckets, min_size=1, max_size=6), longs, longs)

FORMATS = {
    "annotation": (notes, encode_annotation, decode_annotation),
    "UIDMeta": (uid_metas, encode_uid_meta, decode_uid_meta),
    "TSMeta": (ts_metas, encode_ts_meta, decode_ts_meta),
    "counter of a series": (longs, lambda count: count.to_bytes(8, "big", signed=True), decode_count),
    "tree": (trees, encode_tree, decode_tree),
    "rule": (tree_rules, encode_rule, decode_rule),
    "branch": (branches, encode_branch, decode_branch),
    "leaf": (leaves, encode_leaf, decode_leaf),
    "histogram": (histograms, encode_histogram, decode_histogram),
    "histogram cell": (
        st.tuples(st.integers(0, 127), st.binary(min_size=6, max_size=9)),
        lambda both: join_value(*both),
        split_value,
    ),
    "varint": (longs, encode_varint, lambda value: decode_varint(value, 0)[0]),
}


@pytest.mark.parametrize("name", FORMATS)
@law
@given(data=st.data())
def test_object_survives_encoding(name: str, data: st.DataObject) -> None:
    values, encode, decode = FORMATS[name]
    value = data.draw(values)
    stored = encode(value)
    assert decode(stored) == value
    assert encode(decode(stored)) == stored


json_values = st.recursive(
    st.none() | st.booleans() | longs | doubles | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
MEMBERS = (
    "type tsuid startTime endTime description notes custom displayName created units dataType retention max min name "
    "strictMatch enabled storeFailures field level order treeId regexGroupIdx path aggregationIds intervals"
).split()
objects = st.dictionaries(st.sampled_from(MEMBERS), json_values).map(lambda found: json.dumps(found).encode())

OF_ANY_BYTES: dict[str, tuple[Callable[[bytes], object], type[Exception]]] = {
    **{name: (decode, CorruptRow) for name, (_, _, decode) in FORMATS.items()},
    "qualifiers": (split_qualifier, CorruptRow),
    "append column": (split_append, CorruptRow),
    "row key": (lambda key: split_key(KeyLayout(), key), CorruptRow),
    "salted row key": (lambda key: split_key(KeyLayout(Widths(1, 2, 4), 2), key), CorruptRow),
    "JSON": (decode_object, CorruptRow),
    "annotation column": (annotation_offset_ms, CorruptRow),
    "histogram column": (histogram_offset_ms, CorruptRow),
    "rollup column": (lambda name: decode_rollup(RollupConfig({"sum": 0, "max": 3}, ()), name), CorruptRow),
    "rollup configuration": (parse_config, BadConfig),
    "histogram text": (parse_histogram, BadLine),
    "base64": (parse_payload, BadLine),
    "TSUID": (lambda word: split_tsuid(Widths(), word), BadLine),
    "UID text": (lambda word: parse_uid(word.decode("latin-1"), 3), BadLine),
    "counter": (decode_counter, ValueError),
    "kind of a cell": (kind_of, ValueError),
}

DEEP_OR_LONG = [b"[" * 99999, b'{"startTime":' + b"9" * 5000 + b"}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_BYTES)
@law
@given(st.one_of(st.binary(max_size=30), objects, st.sampled_from(DEEP_OR_LONG)))
def test_any_bytes_decode_or_raise_corrupt_row(name: str, given_bytes: bytes) -> None:
    decode, error = OF_ANY_BYTES[name]
    with contextlib.suppress(error):
        assert decode(given_bytes) is not None


@law
@given(st.binary(max_size=10), st.binary(max_size=20))
def test_any_cell_decodes_or_raises_corrupt_row(qualifier: bytes, value: bytes) -> None:
    try:
        found = split(qualifier, value)
    except CorruptRow:
        return
    assert [len(point.qualifier) for point in found] == [len(name) for name in split_qualifier(qualifier)]
    assert sum(len(point.value) for point in found) <= len(value)


@law
@given(st.binary(min_size=2, max_size=20))
def test_any_number_bytes_decode_or_raise(value: bytes) -> None:
    point = Point(value[:2], value[2:])
    try:
        assert isinstance(point.number, int | float)
    except CorruptRow:
        assert len(point.value) not in (1, 2, 4, 8) or point.flags & FLOAT


@law
@given(st.dictionaries(texts, st.none() | st.booleans() | longs | doubles.filter(math.isfinite) | texts))
def test_json_is_read_by_other_parsers(members: dict[str, None]) -> None:
    assert json.loads(encode_object(members)) == members


@law
@given(doubles.filter(math.isfinite))
def test_doubles_survive_encoding(number: float) -> None:
    assert float(show_double(number)) == number
    assert "." in show_double(number)


def bound_text(bound: float) -> str:
    """Return a bound in a telnet line; an infinite one as a decimal beyond every single."""
    return repr(bound) if math.isfinite(bound) else repr(math.copysign(1e39, bound))


@law
@given(histograms)
def test_histogram_is_read_from_text(wanted: Histogram) -> None:
    ranges = [f"{bound_text(one.lower)},{bound_text(one.upper)}={one.values}" for one in wanted.buckets]
    text = ":".join((*ranges, f"u={wanted.underflow}", f"o={wanted.overflow}"))
    assert parse_histogram(text.encode()) == wanted
