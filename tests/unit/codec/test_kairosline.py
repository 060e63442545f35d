"""KairosDB's recorded telnet lines as put lines."""

from collections.abc import Iterator

import pytest

from tests.cases import all_of
from tests.unit.codec.kairosdb_vectors import STORAGE, Point, point_of
from tsd.codec.kairosdb.keys import STRING
from tsd.codec.kairosline import convert_line, is_text_line, split_words
from tsd.codec.putline import FIRST_MS, NameRules, parse_put
from tsd.codec.text import decode_number
from tsd.codec.textline import parse_text_line
from tsd.errors import BadLine

ANY_NAME = NameRules(bytes(range(0x21, 0x100)), max_tags=100)


def lines() -> Iterator[tuple[str, Point | None]]:
    """Recorded lines in ASCII, and the point that KairosDB took."""
    for vector in STORAGE:
        for line in vector.get("lines", ()):
            if not line.isascii():
                continue
            try:
                yield line, point_of(line.removesuffix("\r"))
            except (BadLine, ValueError):
                yield line, None


def is_holdable(point: Point) -> bool:
    """Whether a put line can have a point."""
    words = [point.metric, *point.tags, *point.tags.values()]
    has_names = all(word and not set(word) & {*" =\t\n\r"} for word in words)
    has_time = FIRST_MS <= point.time_ms < 10**13 or (0 < point.time_ms < FIRST_MS and not point.time_ms % 1000)
    has_value = point.type != STRING and abs(point.value) != float("inf")  # type: ignore[arg-type]
    return has_names and has_time and has_value and not point.ttl_s


def converted(line: str) -> tuple[str, int, int | float, dict[str, str]] | None:
    try:
        put = parse_put(convert_line(split_words(line.encode())).rstrip(b"\n"), ANY_NAME)
    except BadLine:
        return None
    tags = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in put.tags}
    time_ms = put.time if put.time >= FIRST_MS else put.time * 1000
    return put.metric.decode("latin-1"), time_ms, decode_number(put.flags, put.value), tags


@all_of(lines(), lambda case: case[0][:40])
def test_recorded_line_has_kairosdbs_point(case: tuple[str, Point | None]) -> None:
    line, point = case
    found = converted(line)
    if point is None or not is_holdable(point) or any(word.count("=") > 1 for word in line.split()[4:]):
        assert found is None  # what follows a second = would be lost
    else:
        assert found is not None
        assert found == (point.metric, point.time_ms, pytest.approx(point.value, rel=1e-7), point.tags)


def test_text_becomes_one_word() -> None:
    line = convert_line(split_words(b'puts m.a 1356998400500 "100% = a b" host=a'), has_texts=True)
    assert is_text_line(line)
    found = parse_text_line(line.removesuffix(b"\n"), NameRules())
    assert found == (b"m.a", ((b"host", b"a"),), 1_356_998_400_500, "100% = a b")
    empty = convert_line(split_words(b'puts m 1 "" host=a'), has_texts=True)
    assert parse_text_line(empty.removesuffix(b"\n"), NameRules()).text == ""


@pytest.mark.parametrize("line", [b"puts m -1 text host=a", b"puts m 10000000000000 text host=a", b"puts m x text"])
def test_text_at_a_time_that_no_row_has_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        convert_line(split_words(line), has_texts=True)


def test_text_is_refused_where_tables_store_numbers() -> None:
    with pytest.raises(BadLine, match="string"):
        convert_line(split_words(b"puts m 1356998400500 text host=a"))
