"""Points of the open hour are in memory and in the journal only: kills at any time lose none, and none is hidden."""

import json
import random
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.command import Served, Tsd
from tsd.daemon.wiring import now_ms

KILLS = 6
HOSTS = 40
SETTINGS = {
    "tsd.journal.max_bytes": "1M",  # so little that bounds are reached
    "tsd.core.auto_create_metrics": "true",
}


def read(daemon: Served, start_s: int) -> dict[tuple[str, int], int]:
    """Return all points, by host and time."""
    path = f"/api/query?start={start_s}&m=none:open.hour"
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}{path}", timeout=60) as answer:
        groups = json.load(answer)
    return {(one["tags"]["host"], int(at)): value for one in groups for at, value in one["dps"].items()}


@pytest.mark.parametrize("interval_ms", ["20", "1000"])
def test_kills_lose_no_point_of_the_open_hour(tmp_path: Path, interval_ms: str) -> None:
    chance = random.Random(interval_ms)
    tsd = Tsd(tmp_path / "state", {**SETTINGS, "tsd.storage.flush_interval": interval_ms})
    sent: dict[tuple[str, int], int] = {}
    start_s = now_ms() // 1000 - 3600
    value = 0
    for kill in range(KILLS + 1):
        with tsd.serve() as daemon:
            assert not sent or read(daemon, start_s) == sent
            for _ in range(chance.randrange(1, 12)):
                points = {}
                for _ in range(chance.choice((1, 50, 2000))):
                    at_s = now_ms() // 1000 - chance.choice((0, 1, 60, 3000))
                    value += 1
                    points[f"h{chance.randrange(HOSTS)}", at_s] = value
                lines = [f"put open.hour {at_s} {number} host={host}\n" for (host, at_s), number in points.items()]
                assert daemon.send_lines("".join(lines).encode()) == b"synced %d\n" % len(lines)
                sent.update(points)
                if chance.random() < 0.3:
                    assert read(daemon, start_s) == sent
            if kill == KILLS:
                daemon.stop()
                break
            if chance.random() < 0.5:
                daemon.kill_while_flushing()
            else:
                daemon.kill()
    assert list((tmp_path / "state" / "journal").glob("*.journal")) == []
    with tsd.serve() as daemon:
        assert read(daemon, start_s) == sent
