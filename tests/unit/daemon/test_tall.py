"""A whole daemon on rows of events, with more points than a read of rows returns."""

import json
from pathlib import Path

import pytest

from tests.running import running
from tests.unit.api.http_requests import http_request

BASE_S = 1_500_001_200  # the start of an hour
SERIES, POINTS = 64, 720
SETTINGS = {"tsd.core.auto_create_metrics": "true", "tsd.storage.layout": "tall"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["1h-count", "10m-count", "7m-count"])
async def test_buckets_of_hours_that_are_read_in_parts_are_whole(tmp_path: Path, how: str) -> None:
    hosts = [f"host{number:02d}" for number in range(SERIES)]
    lines = "".join(
        f"put sys.cpu {BASE_S + 5 * at} {at} host={host} datacenter=lga\n" for at in range(POINTS) for host in hosts
    )
    async with running(tmp_path, SETTINGS) as daemon:
        assert b"put:" not in await daemon.send_lines(lines.encode())
        url = f"/api/query?start={BASE_S}&end={BASE_S + 3599}&m=sum:{how}:sys.cpu{{host=*}}"
        found = await http_request(daemon, url)
    assert found.status == 200, found.body
    counts = {one["tags"]["host"]: sum(one["dps"].values()) for one in json.loads(found.body)}
    skipped = -BASE_S % 420 // 5 if how == "7m-count" else 0  # before the first whole bucket
    assert counts == dict.fromkeys(hosts, POINTS - skipped)
