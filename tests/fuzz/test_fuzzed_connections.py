"""A short flood of malformed connections leaves a real daemon unchanged."""

import os
from pathlib import Path

import pytest

from tests.fuzz.flood import flood

REQUESTS = int(os.environ.get("TSD_FUZZ_REQUESTS") or 1000)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)


@pytest.mark.slow
async def test_fuzzed_connections_leave_daemon_unchanged(tmp_path: Path) -> None:
    outcome = await flood(tmp_path, REQUESTS, SEED)
    assert outcome.requests >= REQUESTS
    assert outcome.answered > outcome.connections // 4
