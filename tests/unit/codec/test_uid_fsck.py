"""What the UID table's check finds and mends, one table for each finding."""

from typing import NamedTuple

import pytest

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    decode_uid,
    encode_counter,
    encode_uid,
    id_column,
    meta_column,
    name_column,
)
from tsd.codec.opentsdb.uid_fsck import UidCell, check_uids


class Case(NamedTuple):
    """A table of tag names, as text, and what is to be found in it."""

    table: str
    after: str
    errors: int = 0
    warnings: int = 0


def uid_of(text: str) -> bytes:
    return encode_uid(int(text), 3)


def table_of(text: str, kind: Kind = Kind.TAGK) -> dict[tuple[bytes, bytes], bytes]:
    """`a>1` is a name's UID, `1>a` a UID's name, `max=1` the counter, `1:meta` a UIDMeta."""
    table = {}
    for word in text.split():
        left, _, right = word.partition(">")
        if word.startswith("max="):
            table[COUNTER_ROW, id_column(kind)] = encode_counter(int(word[4:]))
        elif word.endswith(":meta"):
            table[uid_of(word[:-5]), meta_column(kind)] = b"{}"
        elif left.isdigit():
            table[uid_of(left), name_column(kind)] = right.encode()
        else:
            table[left.encode(), id_column(kind)] = uid_of(right)
    return table


def show(table: dict[tuple[bytes, bytes], bytes], kind: Kind = Kind.TAGK) -> set[str]:
    words = set()
    for (row, column), value in table.items():
        if column == meta_column(kind):
            words.add(f"{decode_uid(row)}:meta")
        elif row == COUNTER_ROW:
            words.add(f"max={int.from_bytes(value, 'big')}")
        elif column == name_column(kind):
            words.add(f"{decode_uid(row)}>{value.decode()}")
        else:
            words.add(f"{row.decode()}>{decode_uid(value)}")
    return words


def mended(table: dict[tuple[bytes, bytes], bytes], **how: bool) -> dict[tuple[bytes, bytes], bytes]:
    check = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True, **how)
    after = table | {(row, column): value for row, column, value in check.puts}
    for place in check.deletes:
        del after[place]
    for kind, by in check.raises.items():
        before = after.get((COUNTER_ROW, id_column(kind)), bytes(8))
        after[COUNTER_ROW, id_column(kind)] = encode_counter(int.from_bytes(before, "big") + by)
    return after


CASES = {
    "a sound table": Case("max=2 a>1 1>a b>2 2>b 1:meta", "max=2 a>1 1>a b>2 2>b 1:meta"),
    "a name whose UID has no name": Case("max=1 a>1", "max=1 a>1 1>a", errors=1),
    "a name whose UID has another name": Case("max=1 a>1 1>b", "max=1 a>1 1>a", errors=1),
    "a name whose UID has another's name": Case("max=2 a>1 1>b b>2 2>b", "max=2 a>1 1>a b>2 2>b", errors=1),
    "two names with one UID": Case("max=2 b>1 a>1 1>a", "max=2 fsck.a.b>1 1>fsck.a.b", errors=2),
    "two UIDs with the name of a third": Case("max=3 a>1 2>a 3>a", "max=3 a>1 1>a", errors=3, warnings=1),
    "a UID that was handed out in vain": Case("max=2 a>1 1>a 2>b 2:meta", "max=2 a>1 1>a", warnings=2),
    "a counter that is behind": Case("max=1 a>1 1>a b>3 3>b", "max=3 a>1 1>a b>3 3>b", errors=1),
    "a counter behind a UID and past the names": Case("max=2 a>5 5>a", "max=5 a>5 5>a", errors=1, warnings=1),
    "no counter": Case("a>1 1>a", "max=1 a>1 1>a", errors=1),
    "a counter that is past the names": Case("max=9 a>1 1>a", "max=9 a>1 1>a", warnings=1),
}


@pytest.mark.parametrize("name", CASES)
def test_findings_are_repaired(name: str) -> None:
    case = CASES[name]
    table = table_of(case.table)
    check = check_uids([UidCell(*place, value) for place, value in table.items()])
    assert (check.errors, len(check.findings) - check.errors) == (case.errors, case.warnings)
    assert {finding.kind for finding in check.findings} <= {Kind.TAGK}
    assert (check.puts, check.deletes, check.raises) == ([], [], {})
    assert show(mended(table)) == set(case.after.split())


@pytest.mark.difference(
    "uid-fsck-waste",
    topic="rows",
    theirs="A UID that a crash has wasted counts as an error of `uid fsck` once its name has another UID",
    ours="It is a warning, as it is while the name has none",
)
def test_uid_handed_out_in_vain_is_no_error() -> None:
    table = table_of("max=2 a>2 2>a 1>a 1:meta")
    check = check_uids([UidCell(*place, value) for place, value in table.items()])
    assert check.errors == 0
    assert any("000001" in finding.text for finding in check.findings)
    assert show(mended(table)) == {"max=2", "a>2", "2>a"}


@pytest.mark.parametrize("name", CASES)
def test_kinds_are_checked_separately(name: str) -> None:
    """The same numbers and names stand for something else in each kind."""
    table = {place: value for kind in Kind for place, value in table_of(CASES[name].table, kind).items()}
    wanted = {place: value for kind in Kind for place, value in table_of(CASES[name].after, kind).items()}
    assert mended(table) == wanted


def test_unknown_columns_are_deleted_only_if_allowed() -> None:
    table = {
        (b"x", b"id:metric"): b"\0\0\1",
        (b"\0\0\1", b"name:ts_meta"): b"{}",
        (b"\0\0\1", b"name:ts_ctr"): bytes(8),
    }
    assert mended(table) == table
    assert mended(table, delete_unknown=True) == {place: value for place, value in table.items() if place[0] != b"x"}
    (finding,) = check_uids([UidCell(*place, value) for place, value in table.items()]).findings
    assert (finding.kind, finding.is_error, finding.text) == (None, False, "78 id:metric: unknown column")


@pytest.mark.parametrize(
    "cell",
    [
        UidCell(b"a", b"id:tagk", b"\0\1"),
        UidCell(b"\0\1", b"name:tagk", b"b"),
        UidCell(COUNTER_ROW, b"id:metrics", b"\1"),
    ],
)
def test_wrong_length_is_an_error_and_unchanged(cell: UidCell) -> None:
    """Its other half stays too: it may be the right one."""
    table = {(cell.row, cell.column): cell.value, (uid_of("1"), b"name:tagk"): b"a"}
    check = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True)
    assert check.errors >= 1
    assert not [place for place in check.deletes if place == (cell.row, cell.column)]
    if cell.row == b"a":
        assert (uid_of("1"), b"name:tagk") not in check.deletes


def test_configured_widths_are_used() -> None:
    table = {(b"a", b"id:tagk"): b"\1", (b"\1", b"name:tagk"): b"a", (COUNTER_ROW, b"id:tagk"): encode_counter(1)}
    found = [UidCell(*place, value) for place, value in table.items()]
    assert check_uids(found, Widths(tagk=1)).findings == []
    assert check_uids(found).errors == 2


def test_counter_of_random_metrics_is_not_checked() -> None:
    found = [UidCell(*place, value) for place, value in table_of("a>77 77>a", Kind.METRIC).items()]
    assert check_uids(found, random_metrics=True).findings == []
    assert check_uids(found).raises == {}
    assert check_uids(found, fix=True).raises == {Kind.METRIC: 77}


def test_existing_joint_name_is_not_reused() -> None:
    table = table_of("max=2 a>1 b>1 1>a fsck.a.b>2 2>fsck.a.b")
    check = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True)
    assert (check.errors, check.puts, check.deletes) == (3, [], [])
