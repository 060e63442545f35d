"""Tables copied from the embedded store: a real OpenTSDB reads them and can write to them."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.put_lines import HOUR_S, Generator, Sent, block, last_of_each_instant, series
from tests.conformance.readers import answered, scanned
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

HOURS = [1356998400, 1357002000]
SERIES = [series(b"copied.cpu", b"host=web01 cpu=0"), series(b"copied.caf\xe9", b"lieu=\xe9tage")]
NEW = [series(b"copied.new", b"host=web03")]
WINDOWS = 3


def test_opentsdb_reads_copied_tables_and_copy_back_is_equal(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    home, tables = Tsd(tmp_path / "home"), hbase.new_tables()
    lines = Generator(1, SERIES, HOURS).lines(600, once_an_instant=True)
    for window in range(WINDOWS):  # several overlapping cells per row
        text = block(lines[window::WINDOWS])
        assert home.run("import", "-", stdin=text).status == 0
    cluster = Tsd(tmp_path / "cluster", on_hbase(hbase, tables))
    names = [word for key, value in cluster.settings.items() for word in ("--to-set", f"{key}={value}")]
    assert home.run("copy", "--to", f"hbase:{hbase.gateway}", *names).status == 0

    peer = opentsdb(tables, **{"tsd.core.auto_create_metrics": "true"})
    assert_answered(peer, lines)
    more = Generator(2, NEW, HOURS).lines(100, once_an_instant=True)
    assert peer.send(block(more)) == b""  # its new names get unused UIDs
    assert_answered(peer, lines + more)

    back = Tsd(tmp_path / "back", {key: name for key, name in cluster.settings.items() if key.endswith("_table")})
    assert cluster.run("copy", "--to", f"embedded:{back.folder}").status == 0
    wanted = last_of_each_instant(lines + more)
    assert scanned(back, {name.metric for name in wanted}) == {
        name: {instant_ms: (sent.time, repr(sent.number)) for instant_ms, sent in instants.items()}
        for name, instants in wanted.items()
    }


def assert_answered(peer: Opentsdb, lines: list[Sent]) -> None:
    """Assert that OpenTSDB answers a query with exactly these points."""
    wanted = last_of_each_instant(lines)
    found = answered(peer, {name.metric for name in wanted}, HOURS[0], HOURS[-1] + HOUR_S)
    assert {
        name: {instant_ms: float(number) for instant_ms, number in points.items()} for name, points in found.items()
    } == {
        name: {instant_ms: float(sent.number) for instant_ms, sent in instants.items()}
        for name, instants in wanted.items()
    }
