"""Run `tsd torture`, and check what every good run reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.process import command, words_of

NAMES = ("lost", "invented", "doubled")


async def torture(
    folder: Path,
    rounds: Mapping[str, int],
    settings: Mapping[str, str] | None = None,
    *,
    daemons: int,
    more: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the ledger of a successful run that leaves no files behind."""
    faults = ",".join(f"{name}={count}" for name, count in rounds.items())
    how = ("--faults", faults, "--daemons", str(daemons), "--json", "--data", folder / "state", *more)
    done = await command("torture", *how, *words_of(settings or {}))
    assert done.returncode == 0, f"{done.stdout.decode()}\n{done.stderr.decode()}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["good"]
    assert {name: report["all"][name] for name in NAMES} == dict.fromkeys(NAMES, 0)
    assert {name: report[name]["rounds"] for name in rounds} == rounds
    assert (
        report["all"]["sent"]
        == report["all"]["acknowledged"] + sum(report["all"]["refused"].values()) + report["all"]["open"]
    )
    assert list(folder.iterdir()) == []
    return report
