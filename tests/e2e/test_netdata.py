"""Debian's netdata with conf/netdata/exporting.conf, and by HTTP: all that it sends is stored."""

import getpass
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.conformance.put_lines import Series, series
from tests.conformance.readers import Shown, scanned
from tests.e2e.command import PATIENCE_S, ROOT, Tsd
from tests.e2e.recording_proxy import RecordingProxy
from tests.peers.needs import need_program

SNIPPET = (ROOT / "conf" / "netdata" / "exporting.conf").read_text()
SECONDS = 5  # points of the longest series
LIMIT_S = 300  # on a busy machine
MAIN = """\
[global]
    hostname = web01
    run as user = {user}
[directories]
    config = {folder}
    cache = {folder}/cache
    lib = {folder}/lib
    log = {folder}/log
[db]
    mode = ram
[web]
    mode = none
[health]
    enabled = no
[plugins]
    apps = no
    charts.d = no
    go.d = no
    ioping = no
    python.d = no
"""
BY_HTTP = """
[opentsdb:http:again]
    enabled = yes
    destination = 127.0.0.1:{port}
    prefix = http
    update every = 1
    data source = as collected
    send charts matching = system.* mem.*
"""
LINE = re.compile(rb"put (\S+) (\d+) (\S+) (host=\S+(?: \S+=\S+)*) ?")
POINT = re.compile(rb'\{"metric":[^{}]*\{[^{}]*\}\}')
Points = dict[Series, dict[int, Shown]]
pytestmark = [pytest.mark.clients, pytest.mark.slow]


@contextmanager
def netdata(program: Path, folder: Path, exporting: str) -> Iterator[None]:
    """Run netdata in the foreground. Stop it cleanly with the block."""
    for name in ("cache", "lib", "log"):
        (folder / name).mkdir(parents=True)
    (folder / "netdata.conf").write_text(MAIN.format(folder=folder, user=getpass.getuser()))
    (folder / "exporting.conf").write_text(exporting)
    with (folder / "output").open("wb") as output:
        running = subprocess.Popen([program, "-D", "-c", folder / "netdata.conf"], stdout=output, stderr=output)
    try:
        yield
        running.send_signal(signal.SIGTERM)
        running.wait(PATIENCE_S)
    finally:
        running.kill()
        running.wait()


def test_what_netdata_sends_is_stored(tmp_path: Path) -> None:
    program, tsd = need_program("netdata"), Tsd(tmp_path / "state")
    with tsd.serve() as daemon, RecordingProxy(daemon.port) as telnet, RecordingProxy(daemon.port) as http:
        with netdata(program, tmp_path / "netdata", shipped(telnet.port) + BY_HTTP.format(port=http.port)):
            await_seconds(telnet, points_of_lines)
            await_seconds(http, points_of_bodies)
        telnet.drain()
        http.drain()
    sent = points_of_lines(telnet.sent()) | points_of_bodies(http.sent())
    for points in sent.values():
        points.pop(0, None)  # of charts that are not collected yet: refused, as by OpenTSDB
    metrics = {name.metric for name in sent}
    assert {name.partition(b".")[0] for name in metrics} == {b"netdata", b"http"}
    assert len(metrics) > 100
    assert scanned(tsd, metrics) == {name: points for name, points in sent.items() if points}


def shipped(port: int) -> str:
    """Return the shipped configuration for another port and shorter intervals."""
    assert SNIPPET.count(":4242") == SNIPPET.count("update every = 10") == 1
    return SNIPPET.replace(":4242", f":{port}").replace("update every = 10", "update every = 1")


def points_of_lines(sent: Iterable[bytes]) -> Points:
    """Return the points of some connections' lines without their incomplete last ones."""
    found: Points = {}
    for line in (line for text in sent for line in text.split(b"\n")[:-1]):
        match = LINE.fullmatch(line)
        assert match, line
        found.setdefault(series(match[1], match[4]), {})[int(match[2]) * 1000] = shown(int(match[2]), match[3])
    return found


def points_of_bodies(sent: Iterable[bytes]) -> Points:
    """Return the points of some connections' requests without incomplete ones."""
    found: Points = {}
    for match in (match for text in sent for match in POINT.finditer(text)):
        point = msgspec.json.decode(match[0])
        tags = " ".join(f"{tagk}={tagv}" for tagk, tagv in point["tags"].items())
        name = series(point["metric"].encode(), tags.encode())
        found.setdefault(name, {})[point["timestamp"] * 1000] = shown(point["timestamp"], str(point["value"]).encode())
    return found


def shown(time_s: int, value: bytes) -> Shown:
    """Return how `tsd scan` prints a point."""
    return Shown(time_s, value.decode() if value.lstrip(b"-").isdigit() else repr(float(value)))


def await_seconds(proxy: RecordingProxy, points_of: Callable[[Iterable[bytes]], Points]) -> None:
    """Return once a series has enough points."""

    def longest() -> int:
        return max(map(len, points_of(proxy.sent()).values()), default=0)

    with proxy.changed:
        assert proxy.changed.wait_for(lambda: longest() >= SECONDS, LIMIT_S), f"wanted {SECONDS}, got {longest()}"
