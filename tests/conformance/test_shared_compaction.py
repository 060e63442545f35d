"""Two daemons and an OpenTSDB write the same rows while both daemons compact them: corrections and deletes count."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conformance.put_lines import HOUR_S, Generator, Sent, Series, block, last_of_each_instant, series
from tests.conformance.readers import answered, scanned
from tests.e2e.command import Served, Tsd, on_hbase, until
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Tables

HOUR = 1356998400
METRIC = b"shared.compacted"
NAMES = [series(METRIC, b"host=web%02d" % number) for number in range(6)]
POINTS, TURNS, PARTS = 600, 9, 4
RUNS = 5  # of a delete while rows are compacted
EAGER = {
    "tsd.storage.compaction.flush_interval": "1",
    "tsd.storage.compaction.min_flush_threshold": "0",
    "tsd.storage.compaction.flush_speed": "360000",  # a round has all rows, and takes a second
    "tsd.storage.compaction.span_age": "1",
}
Points = dict[Series, dict[int, Sent]]


@pytest.mark.slow
def test_corrections_and_deletes_count_while_two_daemons_compact(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    # its own compaction may lose a value that is written meanwhile: see the difference compaction-race
    peer = opentsdb(tables, **{"tsd.storage.fix_duplicates": "true", "tsd.storage.enable_compaction": "false"})
    tsd = Tsd(tmp_path / "first", on_hbase(hbase, tables, EAGER))
    other = Tsd(tmp_path / "second", on_hbase(hbase, tables, EAGER))
    generator = Generator(21, NAMES, [HOUR])
    lines = generator.lines(POINTS, once_an_instant=True)
    with tsd.serve() as first, other.serve() as second:
        for at in range(PARTS):
            written = lines[at::PARTS]
            write((first, second)[at % 2], written)
        for turn in range(TURNS):  # compactions begin and end anywhere in these
            correction = generator.instead(lines, POINTS // 6)
            for writer in (first, second, peer)[turn % 3 :][:2]:
                write(writer, correction)
                lines += correction
                correction = generator.instead(lines, POINTS // 6)
            if turn % 3 == 2:
                lines += (last := own_cell_of_each_row(generator, lines))
                write(first, last)
                await_compacted(hbase, tables, first, second)
            check(last_of_each_instant(lines), tsd, other, peer)

        kept = last_of_each_instant(lines)
        for at, name in enumerate(NAMES):  # a part of each row, of one the whole
            since_s, until_s = (HOUR, HOUR + HOUR_S) if not at else (HOUR + 100 * at, HOUR + 1200)
            delete((tsd, other)[at % 2], name, since_s, until_s)
            kept[name] = {
                time_ms: sent for time_ms, sent in kept[name].items() if not since_s <= time_ms // 1000 < until_s
            }
        check(kept, tsd, other, peer)
        for writer in (peer, first, second):  # each gives the rows cells to compact again
            more = generator.instead(list(kept[NAMES[-1]].values()) + list(kept[NAMES[-2]].values()), POINTS // 8)
            write(writer, more)
            for sent in more:
                kept[sent.series][sent.instant_ms] = sent
        await_compacted(hbase, tables, first, second)
        check(kept, tsd, other, peer)
        deleted = [daemon.stats().get("store.delete_families", 0) for daemon in (first, second)]
        assert sum(deleted) > 0, "no row lost its old cells together"


def write(writer: Served | Opentsdb, lines: list[Sent]) -> None:
    """Write lines, of one instant the last, so that they are stored on return."""
    last = {(sent.series, sent.instant_ms): sent for sent in lines}.values()
    if isinstance(writer, Served):
        assert writer.send_lines(block(last)) == b"synced %d\n" % len(last)
        writer.flush()
    else:
        assert writer.send(block(last)) == b""


def delete(tsd: Tsd, name: Series, since_s: int, until_s: int) -> None:
    """Delete the points of a series from one time to before another. Compactions may write some again meanwhile."""
    tags = [f"{tagk.decode()}={tagv.decode()}" for tagk, tagv in name.tags]
    span = ("--since", str(since_s), "--until", str(until_s), "--yes")
    for _ in range(RUNS):
        done = tsd.run("delete", name.metric.decode(), *tags, *span)
        if done.status != 1:
            break
    assert done.status == 0, done


def own_cell_of_each_row(generator: Generator, lines: list[Sent]) -> list[Sent]:
    """Return a line for each series: a daemon compacts rows that it wrote."""
    return [sent for name in NAMES for sent in generator.instead([one for one in lines if one.series == name], 1)]


def await_compacted(hbase: RunningHbase, tables: Tables, *daemons: Served) -> None:
    """Return once each row is one cell, and no daemon has a row to compact."""

    def is_compacted() -> bool:
        waiting = sum(daemon.stats()["compaction.queue.size"] for daemon in daemons)
        return not waiting and all(len(cells) == 1 for cells in hbase.tables.rows(tables.data).values())

    until(is_compacted, "every row in one cell")


def check(wanted: Points, tsd: Tsd, other: Tsd, peer: Opentsdb) -> None:
    """Fail unless all three read the wanted points."""
    numbers = {
        name: {time_ms: float(sent.number) for time_ms, sent in points.items()}
        for name, points in wanted.items()
        if points
    }
    for reader in (tsd, other):
        found = scanned(reader, [METRIC])
        shown = {name: {at: float(point.number) for at, point in points.items()} for name, points in found.items()}
        assert differences(shown, numbers) == []
    theirs = answered(peer, [METRIC], HOUR, HOUR + HOUR_S)
    assert differences(theirs, numbers) == []


def differences(
    found: Mapping[Series, Mapping[int, float]], wanted: Mapping[Series, Mapping[int, float]]
) -> list[tuple[str, int, float | None, float | None]]:
    """Return where points differ: host, time in ms, and both values."""
    return [
        (name.tags[0][1].decode(), at, mine, theirs)
        for name in NAMES
        for at in sorted(found.get(name, {}).keys() | wanted.get(name, {}).keys())
        if not is_same(mine := found.get(name, {}).get(at), theirs := wanted.get(name, {}).get(at))
    ]


def is_same(one: float | None, other: float | None) -> bool:
    """Return whether two numbers are equal but for the digits that OpenTSDB prints."""
    return one == other if one is None or other is None else math.isclose(one, other, rel_tol=1e-6)
