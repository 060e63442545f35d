"""`tsd torture` in its short form, on three engines; docs/torture.md describes it. The long form is run by hand:

    tsd torture --faults kill=2000

TSD_KILLS sets the number of kills, and scales all other rounds. Its default is 15 in a full run and 5 otherwise.
"""

import json
import os
import signal
import socket
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from tests.e2e.command import on_bigtable
from tests.faults.process import command, served, words_of
from tests.faults.torture_run import torture
from tests.peers.bigtable import RunningBigtable
from tests.peers.hbase import RunningHbase
from tests.peers.needs import full_run, need_peer
from tests.peers.tables import FAMILIES
from tsd.cli.torture.environment import Setup
from tsd.cli.torture.faults import Round
from tsd.cli.torture.run import Run, TorturePlan
from tsd.cli.torture.servers import Servers
from tsd.config.loader import journal_folder
from tsd.config.settings import Config

KILLS = int(os.environ.get("TSD_KILLS") or (15 if full_run() else 5))
EACH = max(KILLS // 20, 1)  # rounds of each gateway fault and of a full disk
FEW = max(KILLS // 40, 1)  # rounds that set the clock, or fill a disk with HBase
RARE = max(KILLS // 100, 1)  # the longest rounds: outages at full load, and slow clients
WARM_UP_LINES = "200000"  # before an outage; the long form sends 600,000
WAYS = ("refuse", "hang", "stall", "late", "cut", "lost", "garble", "repeat")
SECURED = {  # with files that do not exist: they are not read
    "tsd.network.bind": "0.0.0.0", "tsd.network.allow": "10.0.0.0/8", "tsd.network.proxy_protocol": "127.0.0.0/8",
    "tsd.http.trusted_proxies": "127.0.0.0/8", "tsd.network.connections_per_address": "1",
    "tsd.network.line_timeout": "1", "tsd.core.connections.limit": "1", "tsd.core.socket.timeout": "1",
    "tsd.mode": "ro", "tsd.core.authentication.enable": "true", "tsd.auth.file": "accounts",
    "tsd.access.anonymous": "", "tsd.access.write_networks": "10.0.0.0/8", "tsd.access.health": "admin",
    "tsd.access.metrics": "admin", "tsd.tls.certificate": "tsd.pem", "tsd.tls.key": "key.pem",
    "tsd.tls.required": "true", "tsd.tls.minimum": "1.3", "tsd.tls.client_ca": "ca.pem",
    "tsd.tls.client_certificate": "required", "tsd.quota.lines_per_second": "1",
    "tsd.quota.new_names_per_minute": "1", "tsd.uid.new_per_minute": "1", "tsd.ingest.max_series": "1",
    "tsd.http.request.enable_chunked": "false",
    "tsd.http.request.max_chunk": "4096", "tsd.http.request.memory": "1M", "tsd.http.request.timeout": "1",
    "tsd.http.header_tag": "X-Tag", "tsd.http.staticroot": "static", "tsd.core.enable_api": "false",
    "tsd.core.enable_ui": "false", "tsd.core.auto_create_metrics": "false", "tsd.core.auto_create_tagks": "false",
    "tsd.core.auto_create_tagvs": "false", "tsd.storage.max_tags": "1", "tsd.storage.uid.width.metric": "1",
    "tsd.storage.uid.width.tagv": "1", "tsd.query.timeout": "1", "tsd.query.allow_simultaneous_duplicates": "false",
    "tsd.query.limits.bytes.default": "1", "tsd.query.limits.data_points.default": "1",
    "tsd.query.limits.overrides.config": "limits.json", "tsd.query.memory_limit": "16M",
    "tsd.storage.fix_duplicates": "false", "tsd.canary.enable": "true",
    "tsd.core.histograms.config": "histograms.json", "tsd.rollups.enable": "true",
    "tsd.rollups.config": "rollups.json", "tsd.journal.path": "journal", "tsd.journal.max_bytes": "1M",
    "tsd.log.level": "error", "tsd.log.format": "console",
    # Settings that the user's configuration keeps.
    "tsd.query.corrected": "true", "tsd.storage.salt.width": "1", "tsd.core.meta.enable_tsuid_tracking": "true",
    "tsd.core.meta.enable_realtime_ts": "true", "tsd.core.meta.enable_realtime_uid": "true",
    "tsd.core.tree.enable_processing": "true", "tsd.core.uid.random_metrics": "true",
    "tsd.query.series_index": "false", "tsd.core.drain_timeout": "0", "tsd.query.max_concurrent": "1",
    "tsd.rejected.max_bytes": "0", "tsd.stats.canonical": "true", "tsd.core.stats_with_port": "true",
    "tsd.network.backlog": "1",
}  # fmt: skip


@pytest.mark.slow
async def test_torture_kills_embedded(tmp_path: Path) -> None:
    report = await torture(tmp_path, {"kill": KILLS}, daemons=2)
    assert report["all"]["faults"]["kill"] >= KILLS


async def test_torture_other_faults_embedded(tmp_path: Path) -> None:
    report = await torture(tmp_path, {"full": EACH, "clock": FEW, "clients": RARE, "storm": EACH}, daemons=4)
    faults = report["all"]["faults"]
    assert faults.get("disk full", 0) + faults.get("files bounded", 0) >= EACH
    assert faults["bad clients"] == RARE


async def test_torture_with_secured_settings(tmp_path: Path) -> None:
    """Regression: such a run was refused because only some of the settings were replaced."""
    report = await torture(tmp_path, {"kill": 1, "clients": 1}, SECURED, daemons=2)
    assert report["all"]["acknowledged"] > 0
    assert report["all"]["faults"]["bad clients"] == 1


async def test_torture_without_rounds_fails(tmp_path: Path) -> None:
    how = ("--faults", "kill=3", "--duration", "0.00001", "--json", "--data", tmp_path / "state")
    done = await command("torture", *how)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["good"], report["all"]["rounds"]) == (False, 0)
    assert b"NOT GOOD. No round was completed" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_torture_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    with socket.socket() as closed:  # without a listener
        closed.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{closed.getsockname()[1]}"
        settings = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": away}
        done = await command("torture", "--data", tmp_path / "state", *words_of(settings))
    assert (done.returncode, done.stdout) == (3, b"")  # the store is unreachable
    assert list(tmp_path.iterdir()) == []


async def test_torture_kills_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    report = await torture(tmp_path, {"kill": KILLS}, on_hbase(hbase), daemons=3)
    assert report["all"]["faults"]["kill"] >= KILLS
    assert [name for name in hbase.tables.tables() if "torture" in name] == []


async def test_torture_gateways_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    rounds = dict.fromkeys(WAYS, EACH)
    report = await torture(tmp_path, rounds, on_hbase(hbase), daemons=len(rounds))
    assert all(report["all"]["faults"][way] >= EACH for way in WAYS)


async def test_torture_other_faults_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    rounds = {"outage": RARE, "full": FEW, "clock": FEW, "clients": RARE, "storm": EACH}
    report = await torture(tmp_path, rounds, on_hbase(hbase), daemons=len(rounds), more=("--warm-up", WARM_UP_LINES))
    assert report["all"]["maxima"]["stores again after, s"] <= 10


async def test_torture_bigtable(bigtable: RunningBigtable, tmp_path: Path) -> None:
    rounds = dict.fromkeys(("kill", "errors", *WAYS), 1)
    report = await torture(tmp_path, rounds, on_bigtable(bigtable), daemons=len(rounds))
    assert all(report["all"]["faults"][way] >= 1 for way in rounds)


@pytest.mark.slow
async def test_torture_pauses_an_emulator(tmp_path: Path) -> None:
    """One of its own: others use the emulator of the test run."""
    need_peer("bigtable")
    work = tmp_path / "work"
    work.mkdir()
    alone = RunningBigtable(tmp_path / "emulator")
    try:
        report = await torture(work, {"pause": 2}, on_bigtable(alone), daemons=2)
    finally:
        alone.kill()
    assert report["all"]["faults"]["pause"] >= 2


async def test_torture_refuses_to_pause_a_server_elsewhere(tmp_path: Path) -> None:
    with socket.socket() as closed:  # without a listener
        closed.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{closed.getsockname()[1]}"
        settings = words_of({"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": away})
        done = await command("torture", "--faults", "pause", "--data", tmp_path / "state", *settings)
    assert done.returncode == 1
    assert f"got the server {away}, wanted one whose process runs on this machine".encode() in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_torture_heroic_table(tmp_path: Path) -> None:
    report = await torture(tmp_path, {"kill": 2, "full": 1}, {"tsd.storage.layout": "heroic"}, daemons=3)
    assert report["all"]["stored"] > 0


async def test_torture_tall_tables(tmp_path: Path) -> None:
    report = await torture(tmp_path, {"kill": 1}, {"tsd.storage.layout": "tall"}, daemons=1)
    assert report["all"]["stored"] > 0


async def test_torture_detects_lost_points(tmp_path: Path) -> None:
    """Remove stored points, so that verification has to fail."""

    async def vandal(now: Round) -> None:
        await now.environment.start(now.chance, ["3600000"])
        await now.environment.daemon.ready()
        async with now.load():
            await now.wait_confirmed()
            await now.environment.daemon.kill()
        for segment in journal_folder(now.environment.own).glob("*.journal"):
            segment.unlink()
        await now.environment.ensure_ready(now.chance)

    config = Config(path=str(tmp_path / "state"))
    plan = TorturePlan({"vandal": 3}, 7, 1, faults={"vandal": vandal})
    run = Run(plan, Setup(config, "", config, None, Servers(())), tmp_path, ignore)
    await run.run()
    [(name, report)] = run.reports()
    assert (name, report.good, report.rounds) == ("vandal", False, 0)
    assert report.acknowledged == report.lost.count + report.replaced > 0
    assert report.lost.examples[0].startswith("put torture.vandal.0.")
    assert report.errors == ["vandal: round torture.vandal.0 of seed 7"]


async def test_daemon_reports_waiting_tasks_on_signal(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.dump_tasks()
        report = await daemon.logged("tasks.dumped")
        assert any("Writer.write_windows" in line for line in report["tasks"])
        await daemon.terminate()


async def test_torture_fails_if_daemon_exits(tmp_path: Path) -> None:
    """Another process stops the daemon."""
    work = tmp_path / "work"
    lock = work / "clients-0" / "state" / "lock"

    async def stop_daemon() -> None:
        while not (lock.exists() and lock.read_text().strip()):  # noqa: ASYNC110 - of another process
            await trio.sleep(0.01)
        os.kill(int(lock.read_text()), signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_daemon)
        done = await command(
            "torture", "--faults", "clients=1", "--daemons", "1", "--seed", "7", "--json", "--folder", work
        )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["good"], report["seed"], report["all"]["rounds"]) == (False, 7, 0)
    assert "exited" in report["all"]["errors"][-1]
    words = f"NOT GOOD. Logs, journals and stores are in {work}; repeat with: --seed 7 --faults clients"
    assert words in done.stderr.decode()
    assert (work / "clients-0" / "daemon.log").exists()


async def test_torture_refuses_existing_tables(hbase: RunningHbase, tmp_path: Path) -> None:
    """Regression: two runs on the same tables reported each other's points as invented."""
    name = f"twice{uuid4().hex[:8]}"
    hbase.tables.create(f"{name}-tsdb", FAMILIES["data"])
    where = {"folder": tmp_path / name, "data": tmp_path / "state"}
    options = [word for key, value in where.items() for word in (f"--{key}", value)]
    done = await command("torture", "--faults", "clock=1", *options, *words_of(on_hbase(hbase)))
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"{name}-tsdb: the table exists already".encode() in done.stderr
    assert [one for one in hbase.tables.tables() if one.startswith(name)] == [f"{name}-tsdb"]
    hbase.tables.drop(f"{name}-tsdb")


def ignore() -> None:
    """Discard progress messages."""


async def test_torture_refuses_unsupported_fault(tmp_path: Path) -> None:
    done = await command("torture", "--data", tmp_path / "state", "--faults", "refuse")
    assert done.returncode == 2
    assert b"--faults: got fault 'refuse', wanted some of kill, full, clock, clients, storm" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_torture_refuses_a_folder_that_exists(tmp_path: Path) -> None:
    (used := tmp_path / "used").mkdir()
    done = await command("torture", "--data", tmp_path / "state", "--folder", used)
    assert (done.returncode, str(used).encode() in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == [used]


def on_hbase(hbase: RunningHbase) -> dict[str, str]:
    return {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": hbase.gateway}
