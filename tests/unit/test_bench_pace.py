"""Lines at the agents' pace, and clocks that run faster; a run of the systems themselves is no test's."""

import math
import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from bench.agents import LATE_S, Batch, Fleet, batches
from bench.pace import halves
from bench.scaled import ScaledClock, Timeline, compact_in_real_time, words_of
from tests.property.compaction_schedules import Graves
from tsd.codec.opentsdb.cell import COLUMN, FAMILY
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.config.loader import Given
from tsd.daemon import layouts
from tsd.daemon.settings import read_config
from tsd.store import Family, Put, Table

pytestmark = pytest.mark.slow

FLEET = Fleet(1000, 60, 2, 1_700_006_400, late=0.05)


def lines(some: list[Batch]) -> list[list[bytes]]:
    return [line.split(b" ", 4) for batch in some for line in batch.text.splitlines()]


def test_each_host_has_one_point_of_each_metric_a_round() -> None:
    found = lines(list(batches(FLEET)))
    assert len(found) == FLEET.points == len({(metric, when, tags) for _, metric, when, _, tags in found})


@pytest.mark.parametrize("connections", [4, 20])
def test_a_host_sends_all_its_lines_on_one_connection(connections: int) -> None:
    hosts: dict[bytes, set[int]] = {}
    for batch in batches(FLEET):
        shares = list(batch.shares(connections))
        sent = b"".join(text for _, text in shares)
        assert sorted(sent.splitlines()) == sorted(batch.text.splitlines())
        for number, text in shares:
            for line in text.splitlines():
                hosts.setdefault(line.partition(b"host=")[2][:8], set()).add(number)
    assert len(hosts) == FLEET.hosts == 20
    assert {len(numbers) for numbers in hosts.values()} == {1}
    assert len(set.union(*hosts.values())) == connections


def test_batches_are_due_in_order_with_sums_of_their_lines() -> None:
    every = list(batches(FLEET))
    due = [batch.due_s for batch in every]
    assert due == sorted(due)
    for batch in every:
        own = lines([batch])
        assert batch.points == len(own)
        assert batch.times_s == sum(int(when) for _, _, when, _, _ in own)
        assert batch.cents == sum(round(float(value) * 100) for _, _, _, value, _ in own)


def test_late_points_come_after_their_time() -> None:
    delays = [batch.due_s - int(when) for batch in batches(FLEET) for _, _, when, _, _ in lines([batch])]
    assert 0 < sum(delay > 0 for delay in delays) / FLEET.points < 2 * FLEET.late
    assert min(delays) == 0
    assert max(delays) == LATE_S


def test_some_hosts_are_replaced_by_new_ones() -> None:
    fleet = FLEET._replace(series=20_000, round_s=600)
    names = {tags for *_, tags in lines(list(batches(fleet)))}
    assert fleet.hosts < len(names) < fleet.hosts * 1.2


def test_halves_have_all_lines() -> None:
    first, second = halves(FLEET)
    assert [*first, *second] == list(batches(FLEET))


def test_scaled_clock_sleeps_shorter_and_scales_times() -> None:
    timeline = Timeline(1000.0, time.monotonic(), 1_700_006_400.0)

    async def sleeping() -> float:
        begun = trio.current_time()
        await trio.sleep(100)
        return trio.current_time() - begun

    begun = timeline.now_s()
    slept = trio.run(sleeping, clock=ScaledClock(timeline))
    assert 100 <= slept <= timeline.now_s() - begun


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_infinite_deadline_stays_infinite(speed: float) -> None:
    clock = ScaledClock(Timeline(speed, time.monotonic(), 0.0))
    assert clock.deadline_to_sleep_time(math.inf) == math.inf


def test_timeline_goes_on_after_a_restart() -> None:
    timeline = Timeline(60.0, time.monotonic() - 1, 1000.0)
    resumed = timeline.resumed()
    assert resumed.now_s() == pytest.approx(timeline.now_s(), abs=1)


def test_scaled_daemon_ends_with_a_killed_benchmark(tmp_path: Path) -> None:
    """Regression: it ran on."""
    words = words_of(
        Timeline(1.0, time.monotonic(), 1_700_006_400.0),
        {"tsd.network.port": "0", "tsd.storage.path": str(tmp_path), "tsd.log.format": "json"},
    )
    run = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    benchmark = subprocess.Popen([sys.executable, "-c", run, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert benchmark.stdout is not None
    assert benchmark.stderr is not None
    daemon = int(benchmark.stdout.readline())
    ended = os.pidfd_open(daemon)
    try:
        while b"daemon.ready" not in benchmark.stderr.readline():
            assert benchmark.poll() is None
        benchmark.kill()
        benchmark.wait()
        assert select.select([ended], [], [], 60) == ([ended], [], [])
    finally:
        benchmark.stdout.close()
        benchmark.stderr.close()
        if not select.select([ended], [], [], 0)[0]:
            os.kill(daemon, 9)
        os.close(ended)


@pytest.mark.parametrize(("age_s", "is_young"), [(0, True), (20, True), (30, False)])
async def test_rows_on_hbase_are_compacted_by_the_real_clock(
    monkeypatch: pytest.MonkeyPatch, age_s: int, is_young: bool
) -> None:
    """By a scaled clock, which is ahead of their write times, they would be old while they are written."""
    monkeypatch.setattr(layouts, "row_compactor", layouts.row_compactor)
    compact_in_real_time(10)
    given = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "localhost:1"}
    config, _ = read_config(Given("test", key, value) for key, value in given.items())
    store = Graves(lambda: 0)
    store.capabilities = replace(store.capabilities, ascending_timestamps=False)
    await store.create_tables([Table("tsdb", (Family(FAMILY),))])
    row = row_key(KeyLayout(), b"\0\0\1", 0, b"\0\0\1\0\0\1")
    for offset in (0, 16):
        cell = Put(row, COLUMN + bytes((0, offset)), b"\x2a")
        await store.put("tsdb", [cell], time_ms=time.time_ns() // 10**6 - 1000 * age_s)
    compactor = layouts.row_compactor(config, store, lambda: 1 << 42, print, settle_ms=240_000)
    assert await compactor.compact_keys([row]) == ([row] if is_young else [])
    assert len((await store.get("tsdb", [row]))[row]) == (2 if is_young else 1)
