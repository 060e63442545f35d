"""Heroic's bytes are those of Heroic's own classes, both ways."""

import json
from contextlib import suppress
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import all_of
from tests.unit.codec.heroic_vectors import DIGEST, ROWS, TABLE, Vector, double_of, pairs_of, text_of
from tsd.codec.heroic.digest import parse_digest
from tsd.codec.heroic.keys import (
    LONGEST_HEROIC_KEY,
    HeroicKey,
    decode_size,
    encode_size,
    metric_prefix,
    ordered,
    parse_heroic_key,
    series_head,
)
from tsd.codec.heroic.values import POINTS_PREFIX, base_of, encode_values, offset_of, point_columns
from tsd.errors import CorruptRow

NAMES = st.text(st.characters(exclude_categories=["Cs"]))
PAIRS = st.dictionaries(NAMES, NAMES, max_size=5).map(ordered)


def named(vector: Vector) -> str:
    return str(vector["name"][:40])


def is_legal(vector: Vector) -> bool:
    """Whether tsd writes such a point: no half characters, not before 1970."""
    try:
        json.dumps(vector, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return int(vector["timestamp"]) >= 0


LEGAL = [vector for vector in ROWS if is_legal(vector)]


@all_of(LEGAL, named)
def test_points_become_the_recorded_cells(vector: Vector) -> None:
    tags, resource = ordered(pairs_of(vector["tags"])), ordered(pairs_of(vector["resource"]))
    time_ms = vector["timestamp"]
    key = HeroicKey(text_of(vector["key"]), tags, base_of(time_ms), resource)
    row = key.encode()
    assert (base_of(time_ms), len(row)) == (vector["base"], vector["row_bytes"])
    assert len(key._replace(resource=()).encode()) == vector["row_prefix_bytes"]
    assert row.startswith(metric_prefix(key.metric))
    if "row_hex" in vector:
        assert row.hex() == vector["row_hex"]
    else:
        assert row.hex().startswith(vector["row_head_hex"])
        assert sha256(row).hexdigest() == vector["row_sha256"]
    assert parse_heroic_key(row) == key
    assert (len(row) <= LONGEST_HEROIC_KEY) == vector["heroic_stores_it"]
    [column] = point_columns(np.array([time_ms - key.base_ms]))
    assert column == POINTS_PREFIX + bytes.fromhex(vector["qualifier_hex"])
    assert encode_values(np.array([double_of(vector["value"])])) == [bytes.fromhex(vector["value_hex"])]


ILLEGAL = [vector for vector in ROWS if not is_legal(vector)]


@all_of(ILLEGAL, named)
def test_odd_rows_are_read_and_not_written(vector: Vector) -> None:
    key = parse_heroic_key(bytes.fromhex(vector["row_hex"]))
    if "read_back_as" in vector:
        tags, resource = ("{" + ", ".join(f"{k}={v}" for k, v in each) + "}" for each in (key.tags, key.resource))
        shown = f"Series(key={key.metric}, tags={tags}, resource={resource}) base {key.base_ms}"
        assert shown == vector["read_back_as"]
        with pytest.raises(ValueError, match="surrogates"):
            series_head(vector["key"], (("r", vector["resource"][0][1]),) if vector["resource"] else ())
        return
    assert key.base_ms == vector["base"]
    with pytest.raises(ValueError, match="1970"):
        base_of(vector["timestamp"])


def test_documented_example_is_readable() -> None:
    first, second = ROWS[:2]
    key = parse_heroic_key(bytes.fromhex(first["row_hex"]))
    assert key == parse_heroic_key(bytes.fromhex(second["row_hex"]))
    assert key.shown() == (
        "system,cpu-type=idle,site=gew,system-component=cpu,unit=%,what=cpu-idle-percentage,"
        "1297080123392,database.example.com,pod-example-123-abc"
    )
    offsets = [offset_of(bytes.fromhex(vector["qualifier_hex"])) for vector in (first, second)]
    assert offsets == [2919876608, 2920876608]


def test_recorded_distribution_is_read() -> None:
    value = bytes.fromhex(DIGEST["value_hex"])
    digest = parse_digest(value)
    assert (digest.least, digest.largest, digest.compression) == (1.0, 10.0, 100.0)
    assert digest.centroids == [(1, mean) for mean in range(1, 11)]
    assert digest.encode() == value
    for end in range(len(value)):
        with pytest.raises(CorruptRow):
            parse_digest(value[:end])


@given(NAMES, PAIRS, st.integers(0, (1 << 31) - 1), PAIRS)
def test_keys_come_back(metric: str, tags: tuple[tuple[str, str], ...], period: int, resource: object) -> None:
    assert isinstance(resource, tuple)
    key = HeroicKey(metric, tags, period << 32, resource)
    assert parse_heroic_key(key.encode()) == key


@given(st.integers(0, 1 << 27), st.binary())
def test_sizes_come_back(size: int, rest: bytes) -> None:
    encoded = encode_size(size)
    assert decode_size(encoded + rest, 0) == (size, len(encoded))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_corrupt(data: bytes) -> None:
    with suppress(CorruptRow):
        parse_heroic_key(data)


def test_torn_keys_are_corrupt() -> None:
    for vector in TABLE["cells"]:
        key = bytes.fromhex(vector[0])
        for end in range(len(key)):
            try:
                assert parse_heroic_key(key[:end]).resource == ()
            except CorruptRow:
                continue
