"""`tsd torture` on Cassandra. These tests are in a file of their own: all files that name it run in one worker."""

import shlex
from pathlib import Path

import pytest

from tests.e2e.command import ROOT, on_cassandra
from tests.faults.torture_run import torture
from tests.peers.cassandra import RunningCassandra
from tests.peers.needs import need_peer


async def test_torture_cassandra(cassandra: RunningCassandra, tmp_path: Path) -> None:
    rounds = dict.fromkeys(("kill", "clock", "refuse", "stall", "lost", "garble", "repeat"), 1)
    report = await torture(tmp_path, rounds, on_cassandra(cassandra), daemons=len(rounds))
    faults = report["all"]["faults"]
    assert all(faults["clock jump" if way == "clock" else way] >= 1 for way in rounds)


@pytest.mark.slow
async def test_torture_kills_a_node(tmp_path: Path) -> None:
    """One of its own. Two rounds share a kill, or each has one."""
    need_peer("cassandra")
    work = tmp_path / "work"
    work.mkdir()
    own = RunningCassandra(tmp_path / "cassandra", "--durable")
    how = ("--quick", "--durable", f"--port={own.port}", "--storage-port=0")
    restart = shlex.join(map(str, (ROOT / "scripts" / "cassandra", "start", own.home, *how)))
    try:
        report = await torture(work, {"crash": 2}, on_cassandra(own), daemons=2, more=("--restart", restart))
    finally:
        own.kill()
    faults = report["all"]["faults"]
    assert faults["crash"] == 2
    assert 1 <= faults["kill of servers"] <= 2


async def test_torture_kairosdb_tables(cassandra: RunningCassandra, tmp_path: Path) -> None:
    layout = {**on_cassandra(cassandra), "tsd.storage.layout": "kairosdb"}
    report = await torture(tmp_path, dict.fromkeys(("kill", "lost", "repeat"), 1), layout, daemons=3)
    assert report["all"]["stored"] > 0
