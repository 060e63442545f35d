"""`scripts/run` in a fresh clone: seconds until a query finds the first point, with an empty and a filled cache.

The cache is pip's and that of compiled loops. A reference loop says how fast the machine is at the moment.
"""

import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import click

from bench.report import machine, publish, spread, table
from bench.telnet import Telnet
from scripts.peers.ports import HOST, pick

ROOT = Path(__file__).parents[1]
ADDITIONS = 20_000_000
LIMIT_S = 900
GOALS_S = {"empty cache": 90, "filled cache": 30}


@click.command("first-point")
@click.option("--rounds", default=1, help="Rounds.")
def first_point(rounds: int) -> None:
    """Run `scripts/run` in fresh clones until a query finds a point: without and with a cache."""
    found: dict[str, list[float]] = {"reference loop, CPU": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
            for what in GOALS_S:
                found["reference loop, CPU"].append(_reference_s())
                clone = Path(name) / f"{what} {number}".replace(" ", "-")
                subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
                spent_s = _children_s()
                found.setdefault(what, []).append(_run(clone, Path(name) / "cache"))
                found.setdefault(f"{what}, CPU", []).append(_children_s() - spent_s)
    rows = [[what, spread(values), str(GOALS_S.get(what, ""))] for what, values in found.items()]
    report = f"Seconds; the reference loop makes {ADDITIONS // 10**6} million additions. {machine()}.\n\n"
    publish("first_point", report + table(["what", "median (range)", "goal"], rows), found)


def _children_s() -> float:
    """Return the CPU seconds of all processes that ended."""
    times = os.times()
    return times.children_user + times.children_system


def _reference_s() -> float:
    """Return the CPU seconds of a loop of additions."""
    start, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - start


def _run(clone: Path, cache: Path) -> float:
    """Run the daemon from a clone until a query finds a point. Return the seconds."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    port, start = pick(0), time.monotonic()
    command = [str(clone / "scripts" / "run"), "--port", str(port)]
    with (clone / "run.log").open("wb") as log:
        daemon = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        while not _is_answered(port):
            if daemon.poll() is not None or time.monotonic() - start > LIMIT_S:
                said = (clone / "run.log").read_text("utf-8", "replace")
                raise click.ClickException(f"no point was answered: {said}")
            time.sleep(0.1)  # noqa: TID251 (nothing else tells)
        return time.monotonic() - start
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait()


def _is_answered(port: int) -> bool:
    """Put a point. Return whether a query finds it."""
    with suppress(OSError):
        with Telnet(port) as telnet:
            telnet.sync(b"put first.point %d 42 host=here" % time.time())  # noqa: TID251 (as an agent would)
        with urllib.request.urlopen(f"http://{HOST}:{port}/api/query?start=1h-ago&m=sum:first.point") as answer:
            return b"42" in answer.read()
    return False
