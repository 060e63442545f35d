"""VictoriaMetrics' migration tool copies a metric from the daemon into a real VictoriaMetrics.

The tool finds the metric with `/api/suggest`, its series with `/api/search/lookup`, and reads the points with a query
for each series and range of hours."""

import http.client
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.peers.ports import pick
from tests.e2e.command import HOST, PATIENCE_S, Tsd, on_hbase

START_S = 1356998400  # an hour's start
MINUTES = 120
AUTO = {"tsd.core.auto_create_metrics": "true"}
Series = Mapping[tuple[str, ...], Mapping[int, float]]


@pytest.fixture(params=["embedded", pytest.param("hbase", marks=pytest.mark.hbase)])
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """Settings of a daemon on each engine."""
    if request.param == "embedded":
        return Tsd(tmp_path / "state", AUTO)
    hbase = request.getfixturevalue("hbase")
    return Tsd(tmp_path / "state", {**on_hbase(hbase, hbase.new_tables()), **AUTO})


def sent() -> Series:
    """Series by their tag values, with one point per minute."""
    return {
        ("web01", "lga"): {START_S + 60 * minute: float(minute) for minute in range(MINUTES)},
        ("web02", "lga"): {START_S + 60 * minute: minute * 1.5 - 20 for minute in range(MINUTES)},
        ("web03", "sjc"): {START_S + 60 * minute: 1e9 + minute for minute in range(0, MINUTES, 7)},
    }


def test_vmctl_migrates_every_point(tsd: Tsd, tmp_path: Path, program: Callable[[str], Path]) -> None:
    vmctl, server = program("vmctl"), program("victoria-metrics")
    lines = [
        f"put moved.cpu {time} {value!r} host={host} dc={dc}\n"
        for (host, dc), points in sent().items()
        for time, value in points.items()
    ]
    with tsd.serve() as served, victoria_metrics(server, tmp_path / "vm") as port:
        assert served.send_lines("".join(lines).encode()) == b"synced %d\n" % len(lines)
        done = subprocess.run(
            [
                vmctl, "opentsdb", "-s", "--verbose", f"--otsdb-addr=http://{HOST}:{served.port}",
                "--otsdb-filters=moved", "--otsdb-retentions=sum-1m-avg:1h:1d",
                f"--otsdb-hard-ts-start={START_S + 3 * 3600}",
                f"--vm-addr=http://{HOST}:{port}", "--vm-disable-progress-bar",
            ],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        assert "bad response" not in done.stdout + done.stderr, done
        assert moved(port) == sent()


@contextmanager
def victoria_metrics(server: Path, folder: Path) -> Iterator[int]:
    """Run VictoriaMetrics. Yield its port."""
    port = pick(0)
    words = [server, f"-storageDataPath={folder}", f"-httpListenAddr={HOST}:{port}", "-retentionPeriod=100y"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            output = []
            for line in process.stderr:  # it logs when it listens
                output.append(line)
                if "started server at" in line or "starting http server" in line:
                    break
            else:
                pytest.fail(f"VictoriaMetrics exited: {''.join(output)}")
            listener = threading.Thread(target=process.stderr.read)  # a full pipe would block it
            listener.start()
            yield port
        finally:
            process.kill()


def moved(port: int) -> Series:
    """Return everything that VictoriaMetrics has."""
    get(port, "/internal/force_flush")
    found = {}
    for line in get(port, "/api/v1/export?match[]=%7B__name__=~%22.%2B%22%7D").splitlines():
        series = json.loads(line)
        assert series["metric"]["__name__"] == "moved_cpu"
        times = (time // 1000 for time in series["timestamps"])
        found[series["metric"]["host"], series["metric"]["dc"]] = dict(zip(times, series["values"], strict=True))
    return found


def get(port: int, path: str) -> str:
    """Return the body of an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status in (200, 204), (response.status, body)
        return body
    finally:
        connection.close()
