"""What the tests of real peers need from this machine, and what happens where it is not there.

A full run (TSD_TEST_FULL=1, or CI set) fails; any other skips, and says how to get it.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tsd import bytemap, series_entries
from tsd.api import put
from tsd.codec import packed
from tsd.compaction import queue
from tsd.doors import gather
from tsd.ingest import compiled as ingest_compiled
from tsd.query import compiled
from tsd.store import filling, keyvalue, requests

LOOPS = {  # of setup.py's modules: whether it was built and is in use
    "tsd._bytemap": bytemap.HAS,
    "tsd._entries": series_entries.HAS_LOOP,
    "tsd.api._put_json": put.HAS_LOOP,
    "tsd.codec._packed": packed.HAS_LOOP,
    "tsd.compaction._noting": queue.HAS_LOOP,
    "tsd.doors._gather": gather.HAS_LOOP,
    "tsd.ingest._rows": ingest_compiled.HAS,
    "tsd.query._fast": compiled.HAS,
    "tsd.store._keys": filling.HAS_LOOP,
    "tsd.store._requests": requests.HAS_LOOP,
    "tsd.store._split": keyvalue.HAS_LOOP,
}
SCRIPTS = Path(__file__).parents[2] / "scripts"
# Debian's, where they are not called like the program
PACKAGES = {
    "collectd": "collectd-core",
    "nc": "netcat-openbsd",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "systemd-socket-activate": "systemd",
    "vmctl": "victoria-metrics",
}


def full_run() -> bool:
    """Whether what is missing is a failure."""
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("TSD_TEST_FULL", "CI"))


def need_peer(name: str) -> None:
    """Skip the test, or fail it in a full run, if `scripts/NAME` lacks Java or Maven."""
    if lack := _lacking(name):
        _give_up(lack)


def need_program(name: str) -> Path:
    """Where the program `name` is; if it is nowhere, skip the test, or fail it in a full run."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # where daemons live
    if found := shutil.which(name, path=path):
        return Path(found)
    _give_up(f"{name} is not installed. On Debian or Ubuntu: apt-get install {PACKAGES.get(name, name)}")
    raise AssertionError("not reached")


def run_script(name: str, *arguments: str | Path) -> str:
    """What `scripts/NAME` prints; fails the test with what it said where it fails."""
    done = _run(name, *arguments)
    if done.returncode:
        pytest.fail(f"scripts/{name} {' '.join(map(str, arguments))}:\n{done.stderr}{done.stdout}", pytrace=False)
    return done.stdout


def _run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / name, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},  # no search for one at every call
    )


@functools.cache
def _lacking(name: str) -> str:
    done = _run(name, "fetch", "--check")
    return done.stderr.strip() if done.returncode else ""


def need_compiled_loops() -> None:
    """Skip the test, or in a full run fail it, where the compiled loops were not built."""
    if not all(LOOPS.values()):
        _give_up("the compiled loops are not there: a C compiler is wanted when tsd is installed, and TSD_PURE unset")


def _give_up(why: str) -> None:
    if full_run():
        pytest.fail(f"this is a full run: {why}", pytrace=False)
    pytest.skip(why)
