"""One set of tables, an OpenTSDB and this daemon on them: each reads what the other wrote, point for point."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.reading import answered, scanned
from tests.conformance.sent import (
    HOUR_S,
    INTEGERS,
    WIDTHS,
    Generator,
    Sent,
    Series,
    block,
    last_of_each_instant,
    series,
)
from tests.conformance.stored import Shape, named_rows, pieces
from tests.e2e.command import Served, Tsd, on_hbase, until
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Tables

HOURS = [1356998400, 1357002000, 1357052400]  # old enough for OpenTSDB to compact them when they are read
THEIRS = [series(b"shared.theirs", b"host=web01 cpu=0"), series(b"shared.theirs", b"cpu=1 host=web02 dc=lga")]
JOINED = [series(b"shared.joined", b"host=web01 cpu=0"), series(b"shared.joined", b"host=web02")]
SINGLE = [series(b"shared.single", b"host=web01 cpu=0"), series(b"shared.caf\xe9", b"lieu=\xe9tage")]
BOTH = [series(b"shared.both", b"host=web01 cpu=0"), series(b"shared.both", b"host=web02 dc=lga")]
COUNTS = [series(b"shared.counts", b"host=web01")]  # integers only: among floats OpenTSDB shows them as doubles
POINTS = 400
WINDOWS = 4


class Variant(NamedTuple):
    """Settings that both sides must have alike, and what they make of row keys."""

    settings: dict[str, str]
    shape: Shape


VARIANTS = {
    "plain": Variant({}, Shape()),
    "salted": Variant({"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "20"}, Shape(salt=1)),
    "other-widths": Variant(
        {f"tsd.storage.uid.width.{kind}": width for kind, width in {"metric": "4", "tagk": "2", "tagv": "5"}.items()},
        Shape(metric=4, tagk=2, tagv=5),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_each_reads_what_the_other_wrote(
    variant: Variant, hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables, **variant.settings)
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, variant.settings))

    theirs = drawn(1, THEIRS)
    shared = drawn(2, BOTH) + drawn(3, COUNTS, INTEGERS)
    assert peer.send(block(theirs + shared[::2])) == b""
    joined = drawn(4, JOINED)
    with tsd.serve() as daemon:
        write_windows(daemon, joined + shared[1::2], Generator(5, JOINED, HOURS))
    single = drawn(6, SINGLE)
    with tsd.but({"tsd.storage.join_points": "false"}).serve() as daemon:
        write_windows(daemon, single, Generator(7, SINGLE, HOURS))
    lines = theirs + shared + joined + single
    assert most_cells_of_a_row(hbase, tables, variant.shape) > WINDOWS
    assert_scanned(tsd, lines)
    assert_answered(peer, lines)  # and compacted, because they were read
    until(lambda: most_cells_of_a_row(hbase, tables, variant.shape) == 1, "every row in one cell")
    assert_scanned(tsd, lines)

    taken = last_of_each_instant(lines)
    late = [sent for sent in drawn(8, [*THEIRS, *JOINED, *SINGLE, *BOTH]) if sent.instant_ms not in taken[sent.series]]
    with tsd.serve() as daemon:
        write_windows(daemon, late, Generator(9, JOINED, HOURS))
        assert_scanned(tsd, lines + late)
        assert_answered(peer, lines + late)


def test_of_several_values_of_an_instant_the_last_counts(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables, **{"tsd.storage.fix_duplicates": "true"})
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    instants = drawn(10, BOTH)
    generator = Generator(11, BOTH, HOURS)
    lines: list[Sent] = []
    with tsd.serve() as daemon:
        for turn in range(WINDOWS):
            part = generator.instead(instants, POINTS // 2)
            lines += part
            if turn % 2:
                assert peer.send(block(part)) == b""
            else:
                write_windows(daemon, part, generator)
        assert_scanned(tsd, lines)
        assert_answered(peer, lines)
        until(lambda: most_cells_of_a_row(hbase, tables, Shape()) == 1, "every row in one cell")
        assert_scanned(tsd, lines)


def test_append_columns_and_points_over_http_are_read_too(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables, **{"tsd.storage.enable_appends": "true"})
    generator = Generator(12, THEIRS, HOURS)
    lines = generator.lines(POINTS, once_an_instant=True)
    again = generator.instead(lines, POINTS // 4)
    assert peer.send(block(lines)) == peer.send(block(again)) == b""
    over_http = {"metric": "shared.http", "timestamp": HOURS[0], "value": 1.5, "tags": {"host": "web01"}}
    assert peer.http("POST", "/api/put?sync", over_http)[0] == 204
    assert {tuple(cells) for cells in hbase.tables.rows(tables.data).values()} == {(b"t:\5\0\0",)}
    name = series(b"shared.http", b"host=web01")
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    assert_scanned(tsd, [*lines, *again, Sent(b"", name, HOURS[0], 1.5)])
    with tsd.serve() as daemon:  # cells beside the append column, which stays as it is
        late = [sent for sent in drawn(13, THEIRS) if sent.instant_ms not in last_of_each_instant(lines)[sent.series]]
        write_windows(daemon, late, generator)
    assert_scanned(tsd, [*lines, *again, *late, Sent(b"", name, HOURS[0], 1.5)])
    assert_answered(peer, [*lines, *again, *late, Sent(b"", name, HOURS[0], 1.5)])


def drawn(seed: int, names: list[Series], widths: Iterable[int] = WIDTHS) -> list[Sent]:
    """Lines of some series, no instant twice: OpenTSDB refuses to read two values of one, unless told otherwise."""
    return Generator(seed, names, HOURS, widths=widths).lines(POINTS, once_an_instant=True)


def write_windows(daemon: Served, lines: list[Sent], generator: Generator) -> None:
    """Have lines written in several windows, which overlap in time; each repeats some points of those before it."""
    for window in range(WINDOWS):
        written = [sent for at, sent in enumerate(lines) if at % WINDOWS < window]
        part = lines[window::WINDOWS] + generator.again(written, len(written) // 8, changed=False)
        assert daemon.tell(block(part)) == b"synced %d\n" % len(part)
        daemon.flush()


def most_cells_of_a_row(hbase: RunningHbase, tables: Tables, shape: Shape) -> int:
    """Of the data table, every cell of which is looked at."""
    rows = named_rows(hbase, tables, shape).values()
    for cells in rows:
        for qualifier, value in cells.items():
            pieces(qualifier, value)
    return max(map(len, rows))


def assert_scanned(tsd: Tsd, lines: Iterable[Sent]) -> None:
    """`tsd scan --import` prints these points, in their units and types, and no others."""
    wanted = last_of_each_instant(lines)
    assert scanned(tsd, {name.metric for name in wanted}) == {
        name: {instant_ms: (sent.time, repr(sent.number)) for instant_ms, sent in instants.items()}
        for name, instants in wanted.items()
    }


def assert_answered(peer: Opentsdb, lines: Iterable[Sent]) -> None:
    """OpenTSDB answers a query with these points and no others."""
    wanted = last_of_each_instant(lines)
    found = answered(peer, {name.metric for name in wanted}, HOURS[0], HOURS[-1] + HOUR_S)
    assert {name: set(points) for name, points in found.items()} == {
        name: set(instants) for name, instants in wanted.items()
    }
    for name, points in found.items():
        for instant_ms, number in points.items():
            sent = wanted[name][instant_ms].number
            assert number == (float(sent) if isinstance(number, float) else sent), (name, instant_ms)
            assert name not in COUNTS or isinstance(number, int)
