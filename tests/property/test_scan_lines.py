"""Lines of `tsd scan --import` are the points that they came from: times in their unit, numbers to the last bit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.codec_rows import with_appends
from tsd.cli.output import NamedKey
from tsd.cli.scan import NEWEST, lines_of
from tsd.codec.opentsdb.merge import StoredCell
from tsd.codec.opentsdb.row import points
from tsd.codec.putline import HOUR_S, NameRules, instant, parse_put
from tsd.codec.text import decode_number
from tsd.errors import CorruptRow

BASES = st.one_of(st.just(1356998400), st.integers(0, 0xFFFFFFFF // HOUR_S).map(lambda hour: hour * HOUR_S))


@given(with_appends, BASES)
def test_lines_are_parsed_into_their_points(row: list[StoredCell], base: int) -> None:
    key = NamedKey(b"", "sys.cpu", ["host=web01"], base)
    wanted = [
        ((base * 1000 + point.offset_ms) << 1 | point.in_ms, bits(point.number)) for point in points(b"", row, NEWEST)
    ]
    if not all(map(can_be_written, wanted)):
        with pytest.raises(CorruptRow, match="which a line cannot express"):
            list(lines_of(key, row))
        return
    lines = list(lines_of(key, row))
    found = [parse_put(b"put " + line.encode("latin-1"), NameRules()) for line in lines]
    assert [(instant(put.time), bits(decode_number(put.flags, put.value))) for put in found] == wanted


def can_be_written(point: tuple[int, tuple[type, int | float, float]]) -> bool:
    """A number below 2^32 is a time in seconds, one from there up is in ms; 0 is none."""
    moment, (_, number, _) = point
    time = moment >> 1 if moment & 1 else moment // 2000
    return time > 0 and (time >= 1 << 32) == (moment & 1) and math.isfinite(number)


def bits(number: int | float) -> tuple[type, int | float, float]:
    """A number that is equal to no other: zeros have their sign."""
    return type(number), number, math.copysign(1, number)
