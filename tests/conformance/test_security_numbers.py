"""Numbers with more digits than Python parses are client errors, not internal errors with a logged trace."""

from pathlib import Path

import pytest

from tests.running import running
from tests.unit.api.http_requests import http_request

QUERY = "/api/query?start=1h-ago&m=sum"
TARGETS = [
    "GET /api/query?start={}d-ago&m=sum:a.b",
    f"GET {QUERY}:{{}}s-avg:a.b",
    f"GET {QUERY}:rate{{{{counter,{{}},{{}}}}}}:a.b",
    "GET /api/query/gexp?start=1h-ago&exp=highestMax(sum:a.b,{})",
    "GET /api/query/gexp?start=1h-ago&exp=movingAverage(sum:a.b,{})",
    "GET /api/query/gexp?start=1h-ago&exp=movingAverage(sum:a.b,%27{}min%27)",
    "GET /api/stats/clients?limit={}",
    "GET /api/stats/hot?limit={}",
    "GET /api/stats/hot?since={}m",
    "DELETE /api/stats/query?id={}",
]


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000 + "1"], ids=["large", "long"])
async def test_extreme_numbers_cause_no_internal_error(tmp_path: Path, digits: str) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(b"put a.b 1500000000 1 host=a\n")
        for target in TARGETS:
            method, path = target.format(digits, digits).split(" ")
            response = await http_request(daemon, path, method=method)
            assert response.status >= 400
            assert b"integer string conversion" not in response.body
        assert daemon.daemon.server.http.statistics().failures == 0
