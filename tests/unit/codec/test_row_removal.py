"""What takes a span of time out of a row, on rows written as text: qualifier=value@time."""

import pytest

from tests.unit.codec.codec_rows import KEY, cells, show
from tsd.codec.opentsdb.row import Span, removal
from tsd.errors import CorruptRow

HOUR = Span(0, 3_600_000)
SECOND = Span(1000, 2000)


def test_whole_hour_is_deleted_completely() -> None:
    row = cells("0000=2a@5 010000=7b7d@6 0600001000=00@7 0002=010203@8")
    done = removal(KEY, row, HOUR)
    assert (done.points, done.puts, done.obsolete) == ((), (), tuple(row))  # no point: it cannot be read
    assert removal(KEY, row[:2], Span(-5, 1 << 60)).points == (0,)


def test_remaining_part_is_newer_than_all_cells() -> None:
    row = cells("000000100020=2a2b2c00@5 0010=2d@6 0020=2e@4")
    done = removal(KEY, row, SECOND)
    assert done.points == (1000,)
    assert show(done.puts or ()) == "00000020=2a2c00"
    assert [cell.time_ms for cell in done.puts or ()] == [7]
    assert show(done.obsolete) == "000000100020=2a2b2c00 0010=2d"
    assert show(done.spare) == "00000020=2a2c00"


def test_remaining_part_hides_no_newer_value() -> None:
    done = removal(KEY, cells("000000100020=2a2b2c00@5 0020=2e@6"), SECOND)
    assert (done.puts, show(done.spare)) == (None, "00000020=2a2e00")


def test_remaining_parts_have_no_older_values() -> None:
    """As new as the newest value they could be taken for it, as `tsd fsck --last-write-wins` does."""
    done = removal(KEY, cells("00000010=2a2b00@6 f0000000f000fa00=2c2d00@5"), SECOND)
    assert (done.puts, show(done.spare)) == (None, "0000=2a")


def test_one_remaining_point_is_a_single_cell() -> None:
    done = removal(KEY, cells("0000f000fa00=2a2b01@5"), SECOND)
    assert (done.points, show(done.puts or ())) == ((1000,), "0000=2a")


def test_annotations_of_the_span_are_deleted() -> None:
    row = cells("010001=7b7d@5 01000001f4=7b7d@5 01=7b7d@5 0600010000=00@5 09=00@5")
    assert show(removal(KEY, row, SECOND).obsolete) == "010001=7b7d"


def test_append_column_is_replaced_only_if_unchanged() -> None:
    row = cells("050000=00002a00102b00102c@5")
    done = removal(KEY, row, SECOND)
    assert (done.points, done.append, done.obsolete) == ((1000,), (row[0], bytes.fromhex("00002a")), ())
    assert removal(KEY, row, Span(0, 2000)).obsolete == tuple(row)


def test_append_column_that_would_win_is_deleted() -> None:
    row = cells("0020=2a@5 050000=00002b00202c@5")  # of 2 s the lowest column's counts, both are as new
    done = removal(KEY, row, Span(0, 1))
    assert (done.puts, done.append, show(done.obsolete)) == (None, None, "050000=00002b00202c")
    assert show(done.spare) == "0020=2a"


def test_row_without_points_in_the_span_is_unchanged() -> None:
    assert not removal(KEY, cells("0000=2a@5 00200030=2a2b00@5 050000=00402a@5 010000=7b7d@6"), SECOND).changes


def test_unreadable_row_is_not_split() -> None:
    with pytest.raises(CorruptRow, match=KEY.hex()):
        removal(KEY, cells("0010=2a@5 0002=010203@5"), SECOND)


def test_changed_precedence_rewrites_all_points() -> None:
    row = cells("0000f000fa00=010201@5 f00000000010=030401@5")  # 1 s in both, equally new: the first column's counts
    done = removal(KEY, row, Span(-1, 1))
    assert (done.puts, show(done.spare)) == (None, "f000fa00=02")


def test_point_beyond_its_hour_is_deleted_by_its_time() -> None:
    """Regression: it went with its row's hour, and was shown as an hour's."""
    late = cells("0000=2a@5 e100=2b@5")  # the second is of 3600 s after the base time
    done = removal(KEY, late, HOUR)
    assert (done.points, done.puts, show(done.obsolete)) == ((0,), (), "0000=2a")
    assert removal(KEY, late, Span(0, 3_600_001)).points == (0, 3_600_000)
    assert removal(KEY, late, Span(3_600_000, 7_200_000)).points == (3_600_000,)
    assert show(removal(KEY, cells("0000=2a@5 010e10=7b7d@5 060000=00@5"), HOUR).obsolete) == "0000=2a"


def test_unreadable_hour_with_late_point_stays() -> None:
    with pytest.raises(CorruptRow, match=KEY.hex()):
        removal(KEY, cells("0002=010203@5 e100=2b@5"), HOUR)
    assert removal(KEY, cells("0002=010203@5 e100=2b@5"), Span(0, 3_600_001)).changes
