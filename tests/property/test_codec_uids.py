"""The law of the UID table's check: what it mends is mended."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.codec.fsck_uids import UidCell, check_uids
from tsd.codec.uid import (
    COUNTER_ROW,
    Kind,
    decode_counter,
    encode_counter,
    encode_uid,
)

law = settings(deadline=None)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
few_names = st.sampled_from([b"a", b"b", b"c", b"fsck.a.b"])
few_uids = st.integers(0, 5).map(lambda number: encode_uid(number, 3))
uid_cells = st.one_of(
    st.builds(lambda kind, name, uid: UidCell(name, kind.id_column, uid), st.sampled_from(Kind), few_names, few_uids),
    st.builds(lambda kind, name, uid: UidCell(uid, kind.name_column, name), st.sampled_from(Kind), few_names, few_uids),
    st.builds(lambda kind, uid: UidCell(uid, kind.meta_column, b"{}"), st.sampled_from(Kind), few_uids),
    st.builds(lambda kind, n: UidCell(COUNTER_ROW, kind.id_column, encode_counter(n)), st.sampled_from(Kind), longs),
    st.sampled_from([UidCell(b"x", b"id:metric", b"\0\0\1"), UidCell(b"x", b"name:ts_meta", b"{}")]),
)
# What nobody mends.
SPOILT = {UidCell(b"d", b"id:tagk", b"\1"), UidCell(b"\1", b"name:tagk", b"a"), UidCell(COUNTER_ROW, b"id:tagk", b"\1")}
spoilt = st.sampled_from(sorted(SPOILT))


@law
@given(st.lists(st.one_of(uid_cells, uid_cells, spoilt), max_size=14))
def test_uid_fsck_leaves_nothing_that_it_could_mend(found: list[UidCell]) -> None:
    table = {(cell.row, cell.column): cell.value for cell in found}
    check = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True, delete_unknown=True)
    for row, column, value in check.puts:
        table[row, column] = value
    for place in check.deletes:
        del table[place]
    for kind, by in check.raises.items():
        place = COUNTER_ROW, kind.id_column
        table[place] = encode_counter(decode_counter(table.get(place, bytes(8))) + by)
    again = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True, delete_unknown=True)
    assert (again.puts, again.deletes, again.raises) == ([], [], {})
    if not set(found) & SPOILT and all(cell.row != b"fsck.a.b" and cell.value != b"fsck.a.b" for cell in found):
        assert again.errors == 0
        for kind in Kind:
            for cell in found:
                if cell.column == kind.id_column and cell.row != COUNTER_ROW and cell == last_of(found, cell):
                    name = table[cell.value, kind.name_column]  # a UID that had a name has one, if not the same
                    assert table[name, kind.id_column] == cell.value


def last_of(found: list[UidCell], cell: UidCell) -> UidCell:
    """What the table holds where `cell` was written: the last value counts."""
    return next(other for other in reversed(found) if other[:2] == cell[:2])
