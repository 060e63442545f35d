"""Requirements of tests with real peers, and what happens if they are missing.

A full run (TSD_TEST_FULL=1, or CI set) fails; other runs skip the test and say how to install what is missing.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tsd.api import entity_json, put
from tsd.codec import bytemap, number_columns, points
from tsd.codec.blocks import block
from tsd.codec.kairosdb import values
from tsd.codec.opentsdb import merge
from tsd.codec.packing import cell as packed
from tsd.codec.tall import values as tall_values
from tsd.ingest import series
from tsd.ingest.journal import line_columns
from tsd.query import row_buckets
from tsd.server import packet_batches
from tsd.store import cells
from tsd.store.cassandra import wire
from tsd.store.hbase import results, thrift_codec
from tsd.store.rocksdb import keys, version_reads
from tsd.tables import entity_decode
from tsd.tables.kairosdb import encode as kairosdb_encode
from tsd.tables.kairosdb import points as kairosdb_points
from tsd.tables.opentsdb import decode, encode, last_point_cache, resolver, series_index
from tsd.tables.opentsdb.compaction import queue
from tsd.tables.tall import encode as tall_encode

LOOPS = {  # modules of setup.py: whether each is built and in use
    "tsd.codec._bytemap": bytemap.HAS_BYTEMAP_LOOP,
    "tsd.tables.opentsdb._entries": series_index.HAS_LOOP,
    "tsd.tables.opentsdb._last_points": last_point_cache.HAS_LOOP,
    "tsd.api._put_json": put.HAS_LOOP,
    "tsd.codec.opentsdb._merge": merge.HAS_MERGE_LOOP,
    "tsd.codec.packing._packing": packed.HAS_PACKING_LOOP,
    "tsd.tables.opentsdb.compaction._queue": queue.HAS_LOOP,
    "tsd.server._multiplexer": packet_batches.HAS_LOOP,
    "tsd.ingest._parser": series.HAS_LOOP,
    "tsd.codec._columns": points.HAS_LOOP,
    "tsd.ingest.journal._line_columns": line_columns.HAS_LOOP,
    "tsd.codec._number_forms": number_columns.HAS_LOOP,
    "tsd.codec.blocks._block": block.HAS_LOOP,
    "tsd.tables._composer": resolver.HAS_LOOP,
    "tsd.tables.opentsdb._encode": encode.HAS_LOOP,
    "tsd.tables.opentsdb._uid_composer": resolver.HAS_LOOP,
    "tsd.query._loops": row_buckets.HAS_LOOP,
    "tsd.tables.opentsdb._decode": decode.HAS_LOOP,
    "tsd.store.rocksdb._keys": keys.HAS_KEY_LOOP,
    "tsd.store.hbase._encode": thrift_codec.HAS_ENCODE_LOOP,
    "tsd.store._cells": cells.HAS_CELL_LOOP,
    "tsd.store.cassandra._wire": wire.HAS_WIRE_LOOP,
    "tsd.codec.kairosdb._values": values.HAS_VALUES_LOOP,
    "tsd.tables.kairosdb._encode": kairosdb_encode.HAS_ENCODE_LOOP,
    "tsd.tables.kairosdb._points": kairosdb_points.HAS_LOOP,
    "tsd.store.hbase._results": results.HAS_RESULT_LOOP,
    "tsd.store.rocksdb._versions": version_reads.HAS_LOOP,
    "tsd.tables._entity_decode": entity_decode.HAS_LOOP,
    "tsd.api._entity_json": entity_json.HAS_LOOP,
    "tsd.codec.tall._values": tall_values.HAS_LOOP,
    "tsd.tables.tall._encode": tall_encode.HAS_LOOP,
}
SCRIPTS = Path(__file__).parents[2] / "scripts"
# Debian's packages with names other than the program's
PACKAGES = {
    "collectd": "collectd-core",
    "nc": "netcat-openbsd",
    "netdata": "netdata-core",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "systemd-socket-activate": "systemd",
    "systemd-sysusers": "systemd-standalone-sysusers",
    "vmctl": "victoria-metrics",
}


def full_run() -> bool:
    """Whether missing requirements fail."""
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("TSD_TEST_FULL", "CI"))


def need_peer(name: str) -> None:
    """If `scripts/NAME` lacks Java or Maven, skip the test, or fail it in a full run."""
    if lack := _lacking(name):
        _give_up(lack)


def need_program(name: str) -> Path:
    """Return the path of a program. If it is missing, skip the test, or fail it in a full run."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # the folders of daemons
    if found := shutil.which(name, path=path):
        return Path(found)
    _give_up(f"{name} is not installed. On Debian or Ubuntu: apt-get install {PACKAGES.get(name, name)}")
    raise AssertionError("not reached")


def run_script(name: str, *arguments: str | Path) -> str:
    """Return the output of `scripts/NAME`. If it fails, fail the test with its error."""
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
        env=os.environ | {"PYTHON": sys.executable},  # avoids a search at every call
    )


@functools.cache
def _lacking(name: str) -> str:
    done = _run(name, "fetch", "--check")
    return done.stderr.strip() if done.returncode else ""


def need_compiled_loops() -> None:
    """If the compiled loops are not built, skip the test, or fail it in a full run."""
    if not all(LOOPS.values()):
        _give_up("the compiled loops are not there: a C compiler is wanted when tsd is installed, and TSD_PURE unset")


def fail_unexpected_skip(report: pytest.TestReport) -> None:
    """Turn a skipped test of a full run into a failure. Only with TSD_PURE tests may be skipped: those of compiled
    loops."""
    if report.skipped and not hasattr(report, "wasxfail") and full_run() and not os.environ.get("TSD_PURE"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"this is a full run, in which nothing is skipped: {reason}"


def _give_up(why: str) -> None:
    if full_run():
        pytest.fail(f"this is a full run: {why}", pytrace=False)
    pytest.skip(why)
