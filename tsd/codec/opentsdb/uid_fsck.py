"""Findings of OpenTSDB's `uid fsck` in the UID table, and their repairs (FORMATS.md §11).

The functions work on all cells of the table, without a store. No UIDs may be assigned during a repair: an incomplete
assignment looks like a UID without a name.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    ID_FAMILY,
    NAME_FAMILY,
    decode_counter,
    decode_uid,
    id_column,
    meta_column,
    name_column,
)
from tsd.codec.text import counted

_SERIES_META = (b"name:ts_meta", b"name:ts_ctr")


class UidCell(NamedTuple):
    """One cell of the UID table."""

    row: bytes
    column: bytes
    value: bytes


class UidFinding(NamedTuple):
    """One deviation. Only errors count for the exit status."""

    kind: Kind | None
    is_error: bool
    text: str
    of_counter: bool = False  # about the highest UID handed out, which moves


class UidCheck(NamedTuple):
    """Findings in the UID table, and their repair: puts, then deletes, and increments of counters."""

    findings: list[UidFinding]
    puts: list[UidCell]
    deletes: list[tuple[bytes, bytes]]  # row and column
    raises: dict[Kind, int]  # what to add to the highest UID handed out, in one atomic step

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(finding.is_error for finding in self.findings)


class _Names:
    """One kind's part of the table, and what is found there."""

    def __init__(self, kind: Kind, width: int) -> None:
        self.kind = kind
        self.width = width
        self.forward: dict[bytes, bytes] = {}  # name → UID
        self.reverse: dict[bytes, bytes] = {}  # UID → name
        self.malformed: set[bytes] = set()  # names with an invalid UID
        self.described: set[bytes] = set()  # UIDs with a UIDMeta
        self.maximum: bytes | None = None
        self.findings: list[UidFinding] = []
        self.puts: dict[tuple[bytes, bytes], bytes] = {}
        self.deletes: dict[tuple[bytes, bytes], None] = {}
        self.raise_by = 0

    def found(self, text: str, *, is_error: bool = True, of_counter: bool = False) -> None:
        """Record a finding."""
        self.findings.append(UidFinding(self.kind, is_error, text, of_counter))

    def name(self, uid: bytes, name: bytes) -> None:
        """Plan to write the UID's name."""
        self.puts[uid, name_column(self.kind)] = name

    def forget(self, uid: bytes) -> None:
        """Plan to delete the UID's name and metadata."""
        self.deletes[uid, name_column(self.kind)] = None
        if uid in self.described:
            self.deletes[uid, meta_column(self.kind)] = None


def check_uids(
    cells: Iterable[UidCell],
    widths: Widths = Widths(),  # noqa: B008
    *,
    fix: bool = False,
    delete_unknown: bool = False,
    random_metrics: bool = False,
) -> UidCheck:
    """Return the findings in the UID table with all its cells, in any order, each once.

    With `random_metrics` the counter of metrics is not checked. Without `fix` nothing is repaired.

    >>> orphan = UidCell(b"sys.load", b"id:metrics", b"\\0\\0\\1")
    >>> [finding.text for finding in check_uids([orphan], fix=True).findings]
    ['sys.load -> 000001 has no name there', 'the highest UID handed out is 0, and 1 is in use']
    """
    kinds = {kind: _Names(kind, widths.of(kind)) for kind in Kind}
    unknown = _sort_in(sorted(cells), kinds)
    for names in kinds.values():
        _check_forward(names)
        _check_collisions(names)
        _check_reverse(names)
        if not (random_metrics and names.kind is Kind.METRIC):
            _check_maximum(names)
    findings = [UidFinding(None, False, f"{cell.row.hex()} {_show(cell.column)}: unknown column") for cell in unknown]
    findings += [finding for names in kinds.values() for finding in names.findings]
    if not fix:
        return UidCheck(findings, [], [], {})
    deletes = [place for names in kinds.values() for place in names.deletes]
    deletes += [(cell.row, cell.column) for cell in unknown if delete_unknown]
    return UidCheck(
        findings,
        [UidCell(*place, value) for names in kinds.values() for place, value in names.puts.items()],
        deletes,
        {kind: names.raise_by for kind, names in kinds.items() if names.raise_by},
    )


def _sort_in(cells: Iterable[UidCell], kinds: dict[Kind, _Names]) -> list[UidCell]:
    """Assign cells to their kinds. Return those of unknown columns."""
    unknown = []
    columns = {id_column(kind): names for kind, names in kinds.items()}
    columns |= {name_column(kind): names for kind, names in kinds.items()}
    metas = {meta_column(kind): names for kind, names in kinds.items()}
    for row, column, value in cells:
        family = column.partition(b":")[0]
        if column in _SERIES_META:
            continue
        if column in metas:
            metas[column].described.add(row)
        elif column not in columns:
            unknown.append(UidCell(row, column, value))
        elif family == NAME_FAMILY:
            _take_reverse(columns[column], row, value)
        elif row == COUNTER_ROW:
            columns[column].maximum = value
        else:
            assert family == ID_FAMILY
            _take_forward(columns[column], row, value)
    return unknown


def _take_forward(names: _Names, name: bytes, uid: bytes) -> None:
    if len(uid) == names.width:
        names.forward[name] = uid
    else:
        names.malformed.add(name)
        names.found(f"{_show(name)} -> {uid.hex()}: a UID has {names.width} bytes")


def _take_reverse(names: _Names, uid: bytes, name: bytes) -> None:
    if len(uid) == names.width:
        names.reverse[uid] = name
    else:
        names.found(f"{uid.hex()} -> {_show(name)}: a UID has {names.width} bytes")


def _check_forward(names: _Names) -> None:
    """Check that each name's UID has that name."""
    for name, uid in names.forward.items():
        back = names.reverse.get(uid)
        if back is None:
            names.found(f"{_show(name)} -> {uid.hex()} has no name there")
        elif back != name:
            names.found(f"{_show(name)} -> {uid.hex()}, whose name is {_show(back)}")
        else:
            continue
        names.name(uid, name)  # _check_collisions overrides this if several names have the UID


def _check_collisions(names: _Names) -> None:
    """Merge several names with one UID into one name: their points cannot be distinguished."""
    owners: dict[bytes, list[bytes]] = {}
    for name, uid in names.forward.items():
        owners.setdefault(uid, []).append(name)
    for uid, sharing in owners.items():
        if len(sharing) == 1:
            continue
        names.found(f"{uid.hex()} has several names: {', '.join(map(_show, sharing))}")
        joint = b".".join((b"fsck", *sorted(sharing)))
        if joint in names.forward or joint in names.malformed:
            names.found(f"{_show(joint)} is taken, {uid.hex()} is not changed")
            names.puts.pop((uid, name_column(names.kind)), None)
            continue
        names.puts[joint, id_column(names.kind)] = uid
        names.name(uid, joint)
        for name in sharing:
            names.deletes[name, id_column(names.kind)] = None


def _check_reverse(names: _Names) -> None:
    """Check that each UID's name has that UID. A crash between the steps of an assignment leaves a UID whose name has
    none, or later another one: that is no error."""
    used = set(names.forward.values())
    for uid, name in names.reverse.items():
        if uid in used or name in names.malformed:
            continue
        if (own := names.forward.get(name)) is not None:
            is_error = names.reverse.get(own) != name
            names.found(f"{uid.hex()} -> {_show(name)}, whose UID is {own.hex()}", is_error=is_error)
        else:
            names.found(f"{uid.hex()} -> {_show(name)}, which has no UID", is_error=False)
        names.forget(uid)


def _check_maximum(names: _Names) -> None:
    """Check that the counter is not below a UID in use: otherwise that UID would be assigned twice."""
    highest = max(map(decode_uid, (*names.forward.values(), *names.reverse)), default=0)
    try:
        maximum = decode_counter(names.maximum) if names.maximum is not None else 0
    except ValueError as exc:
        names.found(str(exc), of_counter=True)
        return
    highest_text = f"the highest UID handed out is {maximum:,}"
    if maximum > len(names.forward):
        names.found(
            f"{highest_text}, and {counted(len(names.forward), 'name has', 'names have')} one",
            is_error=False,
            of_counter=True,
        )
    if maximum < highest:
        names.found(f"{highest_text}, and {highest} is in use", of_counter=True)
        names.raise_by = highest - maximum


def _show(name: bytes) -> str:
    return name.decode("latin-1")
