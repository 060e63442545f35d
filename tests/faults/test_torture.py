"""`tsd torture` in its short form, on both engines; docs/torture.md says what it does. The long form is for people:

    tsd torture --faults kill=2000

TSD_KILLS says how many kills there are to be, and all other rounds with them; without it 200 in a full run and 5 in
any other.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel

from tests.faults.process import command, words_of
from tests.peers.hbase import RunningHbase
from tests.peers.needs import full_run

KILLS = int(os.environ.get("TSD_KILLS") or (200 if full_run() else 5))
EACH = max(KILLS // 10, 1)  # rounds of each way in which a gateway misbehaves, and of a full disk
FEW = max(KILLS // 40, 1)
WAYS = ("refuse", "hang", "stall", "late", "cut", "lost")
NAMES = ("lost", "invented", "doubled")


async def test_kills_on_the_embedded_store(tmp_path: Path) -> None:
    told = await torture(tmp_path, {"kill": KILLS}, daemons=2)
    assert told["all"]["faults"]["kill"] >= KILLS


async def test_all_else_on_the_embedded_store(tmp_path: Path) -> None:
    told = await torture(tmp_path, {"full": EACH, "clock": FEW, "clients": FEW, "storm": EACH}, daemons=4)
    faults = told["all"]["faults"]
    assert faults.get("disk full", 0) + faults["files bounded"] >= EACH
    assert faults["bad clients"] == FEW


async def test_kills_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    told = await torture(tmp_path, {"kill": KILLS}, on_hbase(hbase), daemons=3)
    assert told["all"]["faults"]["kill"] >= KILLS
    assert [name for name in hbase.tables.tables() if "torture" in name] == []


async def test_gateways_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    rounds = {**dict.fromkeys(WAYS, EACH), "garble": FEW, "repeat": FEW}
    told = await torture(tmp_path, rounds, on_hbase(hbase), daemons=len(rounds))
    assert all(told["all"]["faults"][way] >= EACH for way in WAYS)


async def test_all_else_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    rounds = {"outage": FEW, "full": FEW, "clock": FEW, "clients": FEW, "storm": EACH}
    told = await torture(tmp_path, rounds, on_hbase(hbase), daemons=len(rounds))
    assert told["all"]["worst"]["stores again after, s"] <= 10


async def test_a_vandal_in_the_journal_is_found_out(tmp_path: Path) -> None:
    """Were nothing ever found, nothing would be proven."""
    vandal = trio.CancelScope()

    async def remove_segments() -> None:
        with vandal:
            while True:
                for segment in tmp_path.glob("work/kill-0/state/journal/*.journal"):
                    segment.unlink(missing_ok=True)
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(remove_segments)
        work = tmp_path / "work"
        words = ("torture", "--faults", "kill=50", "--daemons", "1", "--seed", "7", "--json", "--folder", work)
        done = await command(*words, "--set", "tsd.storage.flush_interval=3600000")
        vandal.cancel()
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert not told["good"]
    assert told["all"]["lost"] > 0
    assert told["all"]["examples"]["lost"][0].startswith("put torture.kill.")
    assert f"NOT GOOD. Logs, journals and stores are in {work}; to do it again: --seed 7 --faults kill" in (
        done.stderr.decode()
    )
    assert (work / "kill-0" / "daemon.log").exists()


async def test_faults_that_an_engine_has_not(tmp_path: Path) -> None:
    done = await command("torture", "--data", tmp_path / "state", "--faults", "refuse")
    assert done.returncode == 2
    assert b"--faults: got fault 'refuse', wanted some of kill, full, clock, clients, storm" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def torture(
    folder: Path, rounds: Mapping[str, int], settings: Mapping[str, str] | None = None, *, daemons: int
) -> dict[str, Any]:
    """The ledger of a run in which nothing is wrong, and which leaves nothing behind."""
    faults = ",".join(f"{name}={count}" for name, count in rounds.items())
    how = ("--faults", faults, "--daemons", str(daemons), "--json", "--data", folder / "state")
    done = await command("torture", *how, *words_of(settings or {}))
    assert done.returncode == 0, (done.stdout.decode(), done.stderr.decode())
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["good"]
    assert {name: told["all"][name] for name in NAMES} == dict.fromkeys(NAMES, 0)
    assert {name: told[name]["rounds"] for name in rounds} == rounds
    assert (
        told["all"]["sent"] == told["all"]["acknowledged"] + sum(told["all"]["refused"].values()) + told["all"]["open"]
    )
    assert list(folder.iterdir()) == []
    return told


def on_hbase(hbase: RunningHbase) -> dict[str, str]:
    return {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": hbase.gateway}
