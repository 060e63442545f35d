"""The compiled parser of points in JSON agrees with the Python parsers, or leaves the body to them."""

import json
import random
from collections.abc import Sequence
from itertools import chain, cycle
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.peers.needs import need_compiled_loops
from tsd.api.points import HeaderTag
from tsd.api.put import parse_compiled, parse_put
from tsd.codec.putline import NameRules

RULES = NameRules(max_tags=3)
GAPS = st.lists(st.sampled_from(["", "", " ", "\n\t", "\r\n  "]), min_size=1, max_size=5)
NAMES = st.text("aZ09-_./", min_size=1, max_size=9)
ODD_NAMES = st.text("a:;}],'~!", min_size=1, max_size=3)
TAME = st.integers(-(10**16), 10**16).map(str) | st.sampled_from(["-0", "0.0", "-12.50", "1E5", "1e+99", "2e-07"])
WILD = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(
    ["1e400", "9" * 40, "1" * 50 + ".5"]
)
TIMES = st.integers(1, 9999999999999)
SURE = st.integers(1, 1 << 32) | st.integers(1 << 32, 3999999999999)


@pytest.fixture(autouse=True)
def _loops() -> None:
    need_compiled_loops()


def quoted(text: str) -> str:
    return f'"{text}"'


def points(names: st.SearchStrategy[str], times: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> Any:
    """The marks and words of a point, its members in any order."""
    tags = st.dictionaries(names, names, min_size=1, max_size=3)
    return st.tuples(names, times, values, tags, st.permutations(range(4))).map(lambda drawn: marks_of(*drawn))


def marks_of(metric: str, time: str, value: str, tags: dict[str, str], order: Sequence[int]) -> list[str]:
    pairs = [[",", quoted(tagk), ":", quoted(tagv)] for tagk, tagv in tags.items()]
    members = [
        [",", '"metric"', ":", quoted(metric)],
        [",", '"timestamp"', ":", time],
        [",", '"value"', ":", value],
        [",", '"tags"', ":", "{", *list(chain.from_iterable(pairs))[1:], "}"],
    ]
    return ["{", *list(chain.from_iterable(members[at] for at in order))[1:], "}"]


def bodies(point: st.SearchStrategy[list[str]]) -> st.SearchStrategy[bytes]:
    """Arrays of points, with blanks anywhere."""
    return st.tuples(st.lists(point, min_size=1, max_size=4), GAPS).map(lambda drawn: body_of(*drawn))


def body_of(some: Sequence[Sequence[str]], gaps: Sequence[str]) -> bytes:
    marks = ["[", *[mark for point in some for mark in (",", *point)][1:], "]"]
    return "".join(gap + mark for gap, mark in zip(cycle(gaps), marks, strict=False)).encode()


def parsed(text: bytes, tag: HeaderTag | None, *, compiled: bool) -> object:
    try:
        found = parse_put(text, tag, RULES, compiled=compiled)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
    refused = {number: str(error) for number, error in found.refused.items()}
    return found.text, found.lines, list(found.points), refused, found.size


def check(text: bytes, tag: HeaderTag | None = None) -> bool:
    """Compare the parsers. Return whether the compiled one parsed the text."""
    if parse_compiled(text, tag, RULES) is None:
        return False
    assert parsed(text, tag, compiled=True) == parsed(text, tag, compiled=False), text
    return True


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies(points(NAMES | ODD_NAMES, TIMES.map(str), TAME | WILD)), st.none() | st.tuples(NAMES, NAMES | ODD_NAMES))
def test_usual_bodies_are_parsed_by_the_loop(text: bytes, tag: HeaderTag | None) -> None:
    assert check(text, tag)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies(points(NAMES, SURE.map(str).map(quoted) | SURE.map(str), TAME.map(quoted) | TAME)))
def test_numbers_may_be_strings(text: bytes) -> None:
    assert check(text)


ANY_TIME, ANY_VALUE = TIMES.map(str), TAME | WILD


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    bodies(points(NAMES | ODD_NAMES, ANY_TIME | ANY_TIME.map(quoted), ANY_VALUE | ANY_VALUE.map(quoted))),
    st.none() | st.tuples(NAMES, st.text(min_size=1)),
)
def test_parsers_refuse_the_same_points(text: bytes, tag: HeaderTag | None) -> None:
    check(text, tag)


# ---- mutated bodies

POINT = {"metric": "sys.cpu", "timestamp": 1356998400, "value": 42.5, "tags": {"host": "web01", "cpu": "0"}}
BODIES = [
    json.dumps([POINT, {**POINT, "value": -1}]).encode(),
    json.dumps([POINT, {**POINT, "value": "1e5"}], separators=(",", ":")).encode(),
    b'[{"tags":{"a":"b"},"value":"7","timestamp":"1356998400500","metric":"m"}]',
]
PIECES = [
    *(bytes([code]) for code in b'\0 \t\n\r"\\=[]{},:0129-+.eEaZ_~\x7f\x80'),
    *(b"null", b"true", b"\\u0041", "é".encode(), b'"a":"b"', b'"metric":"m"', b'"x":1', b"{}", b"[]", b"1e5", b"00"),
]  # fmt: skip


def changed(text: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, other = chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)
        piece = chance.choice((b"", chance.choice(PIECES), text[other : other + chance.randrange(40)]))
        text = text[:at] + piece + text[at + chance.choice((0, 1, 1, len(piece))) :]
    return text


@pytest.mark.parametrize("seed", range(2))
def test_mutated_bodies_are_parsed_alike(seed: int) -> None:
    chance = random.Random(seed)
    tags = (None, None, ("dc", "f"), ("host", "x"), ("a", "é"), ("d" * 20, "f" * 18), ("d" * 20, "f" * 19))
    read = [check(changed(chance.choice(BODIES), chance), chance.choice(tags)) for _ in range(2000)]
    assert 100 < sum(read) < 1500


@pytest.mark.parametrize("body", BODIES[1:], ids=len)
def test_any_byte_anywhere_is_parsed_alike(body: bytes) -> None:
    assert check(body)
    for at in range(len(body)):
        assert not check(body[:at])
        for code in range(256):
            check(body[:at] + bytes([code]) + body[at + 1 :])


def test_loop_parses_up_to_16_tags() -> None:
    many = [json.dumps([{**POINT, "tags": {f"k{at}": "v" for at in range(count)}}]).encode() for count in (16, 17)]
    assert [check(text, tag) for text in many for tag in (None, ("k", "v"))] == [True, True, False, False]


def test_loop_parses_lines_no_longer_than_their_points() -> None:
    least = b'[{"metric":"m","timestamp":1,"value":1,"tags":{"a":"b"}}]'
    assert check(least, ("t" * 20, "v" * 18))
    assert not check(least, ("t" * 20, "v" * 19))
