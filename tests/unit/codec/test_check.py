"""The checker: one row for each trouble it knows."""

import pytest

from tests.unit.codec.codec_rows import KEY, cells
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import encode_annotation
from tsd.codec.opentsdb.check import UNREADABLE, Trouble
from tsd.codec.opentsdb.merge import DuplicateTimestamp, MergeRules, merge
from tsd.codec.opentsdb.row import problems
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import CorruptRow

NOTE = encode_annotation(Annotation(1356998401)).hex()
ROWS = {
    "": set(),
    "0000=2a 0011=012c 00200030=010200 f0007d0f=3fb999999999999a": set(),
    f"0000=2a 010001={NOTE} 060000=2a0001000000 050000=00100100200200100a": set(),
    "=": {Trouble.UNKNOWN_COLUMN},
    "09=2a": {Trouble.UNKNOWN_COLUMN},
    "09000000000000=2a": {Trouble.UNKNOWN_COLUMN},
    "05=": {Trouble.UNKNOWN_COLUMN, Trouble.BAD_APPEND},
    "0500000000=": {Trouble.BAD_APPEND},
    "050000=000201": {Trouble.BAD_APPEND},
    "050000=": {Trouble.EMPTY_APPEND},
    "090000=2a": {Trouble.FUTURE_OBJECT},
    "010000=7b6f6f7073": {Trouble.BAD_ANNOTATION},
    f"010002={NOTE}": {Trouble.ODD_ANNOTATION},
    "010000=7b7d": {Trouble.ODD_ANNOTATION},
    "060000=2a00010000": {Trouble.BAD_HISTOGRAM},
    "00000010=2a": {Trouble.BAD_COMPACT},
    "00020010=01020304": {Trouble.BAD_COMPACT},
    "0000f000=2a2b": {Trouble.BAD_COMPACT},
    "fff0=2a": {Trouble.BAD_VALUE},
    "0000=010203": {Trouble.BAD_VALUE},
    "0008=2a": {Trouble.BAD_VALUE},
    "f0007d00=2a00": {Trouble.BAD_VALUE},
    "0000=": {Trouble.BAD_VALUE},
    "000b=0000000042280000": {Trouble.OLD_ENCODING},
    "000f=42280000": {Trouble.OLD_ENCODING},
    "0007=2a": {Trouble.OLD_ENCODING},
    "000b=ffffffff42280000": {Trouble.SIGN_EXTENDED},
    "000b=0000000142280000": {Trouble.BAD_VALUE},
    "00000010=2a2b": {Trouble.LAST_BYTE},
    "00000010=2a2b01": {Trouble.LAST_BYTE},
    "0000f0007d00=2a2b00": {Trouble.LAST_BYTE},
    "00100000=2b2a00": {Trouble.UNORDERED},
    "000b=7f800000": {Trouble.INFINITE},
    "000f0010=fff00000000000002a00": {Trouble.INFINITE},
    "000b=7fc00000": set(),
    "e100=2a": {Trouble.BEYOND_HOUR},
    "fdbba000=2a": {Trouble.BEYOND_HOUR},
    "00000000=2a2a00": {Trouble.REPEATED},
    "00000010=2a2b00 f0000000=2a": {Trouble.REPEATED},
    "0000=2a 000b=42280000": {Trouble.CONFLICT},
    "0000=2a 050000=00002b": {Trouble.CONFLICT},
    "0007=000000000000002a": {Trouble.WIDE_INTEGER},
    "00000017=2a000000000000002b00": {Trouble.WIDE_INTEGER},
}


@pytest.mark.parametrize("row", ROWS)
def test_problems_of_a_row(row: str) -> None:
    found = problems(KEY, cells(row))
    assert {problem.trouble for problem in found} == ROWS[row]
    assert {problem.qualifier for problem in found} <= {cell.qualifier for cell in cells(row)}


@pytest.mark.parametrize("row", ROWS)
def test_readers_refuse_unreadable_problems(row: str) -> None:
    troubles = {problem.trouble for problem in problems(KEY, cells(row))}
    if troubles & UNREADABLE:
        with pytest.raises(CorruptRow):
            merge(KEY, cells(row), MergeRules(fix_duplicates=True))
    elif Trouble.CONFLICT in troubles:
        with pytest.raises(DuplicateTimestamp):
            merge(KEY, cells(row))
    else:
        assert merge(KEY, cells(row)).variant == 0


@pytest.mark.parametrize(
    ("layout", "key", "troubles"),
    [
        (KeyLayout(), "00000150e22700000001000001", set()),
        (KeyLayout(), "00000050e22700", set()),  # global annotations
        (KeyLayout(), "00000150e22700", {Trouble.ROW_KEY}),
        (KeyLayout(), "00000150e2270000000100000100", {Trouble.ROW_KEY}),
        (KeyLayout(), "000001", {Trouble.ROW_KEY}),
        (KeyLayout(), "00000150e22701000001000001", {Trouble.BASE_TIME}),
        (KeyLayout(), "00000150e22700000002000001000001000001", {Trouble.TAG_ORDER}),
        (KeyLayout(), "00000150e22700000001000001000001000002", {Trouble.TAG_ORDER}),
        (KeyLayout(salt_width=1), "0300000350e22700000001000004", set()),
        (KeyLayout(salt_width=1), "0400000350e22700000001000004", {Trouble.SALT}),
        (KeyLayout(salt_width=1), "0000000050e22700", set()),
    ],
)
def test_problems_of_a_row_key(layout: KeyLayout, key: str, troubles: set[Trouble]) -> None:
    assert {problem.trouble for problem in problems(bytes.fromhex(key), [], layout)} == troubles


def test_every_problem_has_an_example() -> None:
    keys = {Trouble.ROW_KEY, Trouble.BASE_TIME, Trouble.TAG_ORDER, Trouble.SALT}
    assert set[Trouble]().union(*ROWS.values()) == set(Trouble) - keys
