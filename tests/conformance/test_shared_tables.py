"""An OpenTSDB and this daemon on one set of tables: each reads exactly what the other wrote."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.hbase_points import Shape, named_rows, pieces
from tests.conformance.put_lines import (
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
from tests.conformance.readers import answered, scanned
from tests.e2e.command import Served, Tsd, on_hbase, until
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Tables

HOURS = [1356998400, 1357002000, 1357052400]  # old enough for OpenTSDB to compact them when they are read
THEIRS = [series(b"shared.theirs", b"host=web01 cpu=0"), series(b"shared.theirs", b"cpu=1 host=web02 dc=lga")]
JOINED = [series(b"shared.joined", b"host=web01 cpu=0"), series(b"shared.joined", b"host=web02")]
SINGLE = [series(b"shared.single", b"host=web01 cpu=0"), series(b"shared.caf\xe9", b"lieu=\xe9tage")]
BOTH = [series(b"shared.both", b"host=web01 cpu=0"), series(b"shared.both", b"host=web02 dc=lga")]
COUNTS = [series(b"shared.counts", b"host=web01")]  # integers only: next to floats OpenTSDB prints them as doubles
POINTS = 400
WINDOWS = 4


class Variant(NamedTuple):
    """Settings that both daemons need, and the resulting row keys."""

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
def test_tsd_and_opentsdb_read_each_others_rows(
    variant: Variant, hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables, **variant.settings)
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, variant.settings))

    theirs = random_lines(1, THEIRS)
    shared = random_lines(2, BOTH) + random_lines(3, COUNTS, INTEGERS)
    assert peer.send(block(theirs + shared[::2])) == b""
    joined = random_lines(4, JOINED)
    with tsd.serve() as daemon:
        write_windows(daemon, joined + shared[1::2], Generator(5, JOINED, HOURS))
    single = random_lines(6, SINGLE)
    with tsd.but({"tsd.storage.join_points": "false"}).serve() as daemon:
        write_windows(daemon, single, Generator(7, SINGLE, HOURS))
    lines = theirs + shared + joined + single
    assert most_cells_of_a_row(hbase, tables, variant.shape) > WINDOWS
    assert_scanned(tsd, lines)
    assert_answered(peer, lines)  # OpenTSDB compacts them because they were read
    until(lambda: most_cells_of_a_row(hbase, tables, variant.shape) == 1, "every row in one cell")
    assert_scanned(tsd, lines)

    taken = last_of_each_instant(lines)
    late = [
        sent
        for sent in random_lines(8, [*THEIRS, *JOINED, *SINGLE, *BOTH])
        if sent.instant_ms not in taken[sent.series]
    ]
    with tsd.serve() as daemon:
        write_windows(daemon, late, Generator(9, JOINED, HOURS))
        assert_scanned(tsd, lines + late)
        assert_answered(peer, lines + late)


def test_last_value_of_an_instant_wins(hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path) -> None:
    tables = hbase.new_tables()
    peer = opentsdb(tables, **{"tsd.storage.fix_duplicates": "true"})
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    instants = random_lines(10, BOTH)
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


def test_append_columns_and_http_points_are_read(
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
    with tsd.serve() as daemon:  # writes cells next to the append column, which does not change
        late = [
            sent for sent in random_lines(13, THEIRS) if sent.instant_ms not in last_of_each_instant(lines)[sent.series]
        ]
        write_windows(daemon, late, generator)
    assert_scanned(tsd, [*lines, *again, *late, Sent(b"", name, HOURS[0], 1.5)])
    assert_answered(peer, [*lines, *again, *late, Sent(b"", name, HOURS[0], 1.5)])


def random_lines(seed: int, names: list[Series], widths: Iterable[int] = WIDTHS) -> list[Sent]:
    """Return lines with different instants: by default OpenTSDB refuses to read two values of one."""
    return Generator(seed, names, HOURS, widths=widths).lines(POINTS, once_an_instant=True)


def write_windows(daemon: Served, lines: list[Sent], generator: Generator) -> None:
    """Make the daemon write lines in several windows that overlap in time; each repeats points of earlier ones."""
    for window in range(WINDOWS):
        written = [sent for at, sent in enumerate(lines) if at % WINDOWS < window]
        part = lines[window::WINDOWS] + generator.again(written, len(written) // 8, changed=False)
        assert daemon.send_lines(block(part)) == b"synced %d\n" % len(part)
        daemon.flush()


def most_cells_of_a_row(hbase: RunningHbase, tables: Tables, shape: Shape) -> int:
    """Return the maximum number of cells per row of the data table, and check every cell."""
    rows = named_rows(hbase, tables, shape).values()
    for cells in rows:
        for qualifier, value in cells.items():
            pieces(qualifier, value)
    return max(map(len, rows))


def assert_scanned(tsd: Tsd, lines: Iterable[Sent]) -> None:
    """Assert that `tsd scan --import` prints exactly these points in their units and types."""
    wanted = last_of_each_instant(lines)
    assert scanned(tsd, {name.metric for name in wanted}) == {
        name: {instant_ms: (sent.time, repr(sent.number)) for instant_ms, sent in instants.items()}
        for name, instants in wanted.items()
    }


def assert_answered(peer: Opentsdb, lines: Iterable[Sent]) -> None:
    """Assert that OpenTSDB answers a query with exactly these points."""
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
