"""Compare words, names, JSON, annotations, histograms and rollups with OpenTSDB's own classes in a Java process."""

import json
import math
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.peers.java import fetch, find_java
from tests.peers.needs import need_peer
from tsd.codec.metadata import Annotation, TsMeta, UidMeta
from tsd.codec.names import Kind
from tsd.codec.opentsdb.annotation import annotation_qualifier, encode_annotation
from tsd.codec.opentsdb.histogram import encode_histogram, join_value, make_histogram, single
from tsd.codec.opentsdb.meta import encode_ts_meta, encode_uid_meta
from tsd.codec.opentsdb.rollup import Interval, parse_duration, rollup_base, rollup_qualifier
from tsd.codec.points import Bucket
from tsd.codec.text import encode_float, illegal_character, java_map_order, parse_double, parse_long, show
from tsd.errors import BadLine

pytestmark = pytest.mark.opentsdb
law = settings(deadline=None, max_examples=300)


class Classes:
    """Calls OpenTSDB's classes."""

    def __init__(self) -> None:
        command = [find_java(), "-cp", f"{fetch('opentsdb')}/*", Path(__file__).with_name("OpentsdbClasses.java")]
        self._java = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def call(self, *words: object) -> str:
        """Return the result, `= …`, or the error's text, `! …`. Bytes are passed in hex."""
        assert self._java.stdin
        assert self._java.stdout
        shown = (word.hex() if isinstance(word, bytes) else str(word) for word in words)
        self._java.stdin.write(" ".join(shown).encode() + b"\n")
        self._java.stdin.flush()
        return bytes.fromhex(self._java.stdout.readline().decode()).decode()

    def close(self) -> None:
        self._java.communicate(timeout=60)


@pytest.fixture(scope="module")
def classes() -> Iterator[Classes]:
    need_peer("opentsdb")
    process = Classes()
    yield process
    process.close()


number_words = st.one_of(
    st.text(st.sampled_from("00112345678999..eE+-fFdDxXpP \t_"), min_size=1, max_size=10),
    st.from_regex(r"\A[-+]?[0-9]{1,21}\Z").filter(str.isascii),
    st.from_regex(r"\A[-+]?[0-9]{0,9}\.[0-9]{0,12}([eE][-+]?[0-9]{1,3})?[fFdD]?\Z").filter(str.isascii),
    st.from_regex(r"\A-?0[xX][0-9a-f]{0,15}\.?[0-9a-f]{0,4}[pP]-?[0-9]{1,4}[dD]?\Z").filter(str.isascii),
    st.text(st.characters(max_codepoint=255), min_size=1, max_size=4),
).map(lambda text: text.encode("latin-1"))


@law
@given(number_words)
def test_integers_parse_as_in_opentsdb(classes: Classes, word: bytes) -> None:
    try:
        here = f"= {parse_long(word)}"
    except BadLine as exc:
        here = f"! {exc}".replace("! invalid value: ", "! ")
    assert here == classes.call("long", word)


@law
@given(number_words.filter(lambda word: set(word) & set(b".eE")))  # only these are parsed as floats
def test_floats_parse_as_in_opentsdb(classes: Classes, word: bytes) -> None:
    try:
        number = parse_double(word)
        here = f"= {struct.unpack('>Q', struct.pack('>d', number))[0]:x}"
    except BadLine as exc:
        here = f"! {exc}".replace("! invalid value: ", "! ")
    assert here == classes.call("double", word)
    if here.startswith("=") and math.isfinite(number):
        assert f"= {str(len(encode_float(number)[1]) == 4).lower()}" == classes.call("fits", word)


def test_name_characters_are_those_of_opentsdb(classes: Classes) -> None:
    legal = [code for code in range(256) if classes.call("name", bytes((code,))) == "= "]
    assert legal == [code for code in range(256) if illegal_character(bytes((code,))) is None]


texts = st.text(max_size=8)
full_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


@law
@given(st.lists(full_texts.filter(lambda text: "\n" not in text), min_size=1, max_size=60))
def test_hash_map_order_is_that_of_java(classes: Classes, names: list[str]) -> None:
    assert "= " + "\n".join(java_map_order(names)) == classes.call("order", "\n".join(names).encode())


@law
@given(st.one_of(texts, st.text(st.sampled_from('\0\1\x1b\x1f\x7f\x9f\u2028\ufeff\uffff😀"\\/\b\t\n\f\r'))))
def test_json_strings_are_those_of_opentsdb(classes: Classes, text: str) -> None:
    assert f"= {show(text).encode().hex()}" == classes.call("string", json.dumps(text).encode())


times = st.one_of(
    st.integers(1, (1 << 32) - 1),
    st.integers(1 << 32, 9999999999999),
    st.integers(1, 9999999999).map(lambda number: number * 1000),
)
longs = st.integers(0, (1 << 63) - 1)
customs = st.none() | st.dictionaries(texts, texts, max_size=20)


@law
@given(times)
def test_annotation_columns_are_those_of_opentsdb(classes: Classes, start: int) -> None:
    assert f"= {annotation_qualifier(start).hex()}" == classes.call("notequalifier", start)


@law
@given(st.builds(Annotation, times, longs, texts, texts, st.sampled_from(["", "0a", "0A"]), customs))
def test_annotations_are_those_of_opentsdb(classes: Classes, note: Annotation) -> None:
    body = {
        "startTime": note.start_time,
        "endTime": note.end_time,
        "description": note.description,
        "notes": note.notes,
        "tsuid": note.tsuid,
        "custom": note.custom,
    }
    assert f"= {encode_annotation(note).hex()}" == classes.call("note", json.dumps(body).encode())


@law
@given(st.builds(UidMeta, st.sampled_from(Kind), texts, texts, texts, longs, customs))
def test_uid_metas_are_those_of_opentsdb(classes: Classes, meta: UidMeta) -> None:
    stored = encode_uid_meta(meta)
    assert f"= {stored.hex()}" == classes.call("uidmeta", stored)


# Doubles that every Java prints alike: before 19 some others have an unnecessary digit.
plain_doubles = st.one_of(st.just(math.nan), st.integers(-(10**9), 10**9).map(lambda number: number / 1000))


@law
@given(st.builds(TsMeta, st.just("0A"), texts, texts, texts, longs, customs, texts, texts, st.integers(0, 99),
                 plain_doubles, plain_doubles))  # fmt: skip
def test_ts_metas_are_those_of_opentsdb(classes: Classes, meta: TsMeta) -> None:
    stored = encode_ts_meta(meta)
    assert f"= {stored.hex()}" == classes.call("tsmeta", stored)


bounds = st.one_of(st.integers(-5, 5).map(float), st.sampled_from([-0.0, 0.1, 1e39, 1e-50]), st.floats(allow_nan=False))
signed_longs = st.integers(-(1 << 63), (1 << 63) - 1)
raw_buckets = st.lists(st.tuples(bounds, bounds, signed_longs), min_size=1, max_size=6)


def java(bound: float) -> str:
    return repr(bound).replace("inf", "Infinity")


@law
@given(raw_buckets, signed_longs, signed_longs)
def test_histograms_are_those_of_opentsdb(
    classes: Classes, raw: list[tuple[float, float, int]], under: int, over: int
) -> None:
    made = make_histogram((Bucket(single(low), single(high), values) for low, high, values in raw), under, over)
    stored = join_value(42, encode_histogram(made))
    words = [word for low, high, values in raw for word in (java(low), java(high), values)]
    assert f"= {stored.hex()}" == classes.call("histogram", under, over, *words)
    assert f"= {stored.hex()}" == classes.call("readhistogram", stored)


SPANS = "1s/1h 1m/1h 5m/2h 10m/6h 1h/1d 1d/1n 30m/1n 7d/1y 1w/1y 1n/1y 1d/1y".split()


@law
@given(st.sampled_from(SPANS), st.integers(1, (1 << 32) - 1), st.sampled_from([0, 1, 3, 7, 11, 15]))
def test_rollup_cells_are_those_of_opentsdb(classes: Classes, how: str, time: int, flags: int) -> None:
    name, span = how.split("/")
    interval = Interval(name, parse_duration(name), int(span[:-1]), span[-1], "t", "p")
    try:
        qualifier = rollup_qualifier(1, time, interval, flags)
        here = f"= {interval.per_row} {rollup_base(time, interval)} {qualifier.hex()}"
    except BadLine as exc:
        here = f"! {exc}"
    assert here == classes.call("rollup", name, span, time, flags)
