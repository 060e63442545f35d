"""The law of the UID table's check: what it mends is mended."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    decode_counter,
    encode_counter,
    encode_uid,
    id_column,
    meta_column,
    name_column,
)
from tsd.codec.opentsdb.uid_fsck import UidCell, check_uids

law = settings(deadline=None)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
few_names = st.sampled_from([b"a", b"b", b"c", b"fsck.a.b"])
few_uids = st.integers(0, 5).map(lambda number: encode_uid(number, 3))
uid_cells = st.one_of(
    st.builds(lambda kind, name, uid: UidCell(name, id_column(kind), uid), st.sampled_from(Kind), few_names, few_uids),
    st.builds(
        lambda kind, name, uid: UidCell(uid, name_column(kind), name), st.sampled_from(Kind), few_names, few_uids
    ),
    st.builds(lambda kind, uid: UidCell(uid, meta_column(kind), b"{}"), st.sampled_from(Kind), few_uids),
    st.builds(lambda kind, n: UidCell(COUNTER_ROW, id_column(kind), encode_counter(n)), st.sampled_from(Kind), longs),
    st.sampled_from([UidCell(b"x", b"id:metric", b"\0\0\1"), UidCell(b"x", b"name:ts_meta", b"{}")]),
)
# Damage that is not repaired.
SPOILT = {UidCell(b"d", b"id:tagk", b"\1"), UidCell(b"\1", b"name:tagk", b"a"), UidCell(COUNTER_ROW, b"id:tagk", b"\1")}
spoilt = st.sampled_from(sorted(SPOILT))


@law
@given(st.lists(st.one_of(uid_cells, uid_cells, spoilt), max_size=14))
def test_uid_fsck_repairs_everything_repairable(found: list[UidCell]) -> None:
    table = {(cell.row, cell.column): cell.value for cell in found}
    check = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True, delete_unknown=True)
    for row, column, value in check.puts:
        table[row, column] = value
    for place in check.deletes:
        del table[place]
    for kind, by in check.raises.items():
        place = COUNTER_ROW, id_column(kind)
        table[place] = encode_counter(decode_counter(table.get(place, bytes(8))) + by)
    again = check_uids([UidCell(*place, value) for place, value in table.items()], fix=True, delete_unknown=True)
    assert (again.puts, again.deletes, again.raises) == ([], [], {})
    if not set(found) & SPOILT and all(cell.row != b"fsck.a.b" and cell.value != b"fsck.a.b" for cell in found):
        assert again.errors == 0
        for kind in Kind:
            for cell in found:
                if cell.column == id_column(kind) and cell.row != COUNTER_ROW and cell == last_of(found, cell):
                    name = table[cell.value, name_column(kind)]  # a UID that had a name has one, if not the same
                    assert table[name, id_column(kind)] == cell.value


def last_of(found: list[UidCell], cell: UidCell) -> UidCell:
    """What the table holds where `cell` was written: the last value counts."""
    return next(other for other in reversed(found) if other[:2] == cell[:2])
