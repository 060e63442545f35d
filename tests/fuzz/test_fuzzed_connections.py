"""A short flood of connections that nobody should make, to a real daemon: it is as it was before."""

import os
from pathlib import Path

import pytest

from tests.fuzz.flood import flood

REQUESTS = int(os.environ.get("TSD_FUZZ_REQUESTS") or 3000)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)


@pytest.mark.slow
async def test_a_flood_leaves_the_daemon_as_it_was(tmp_path: Path) -> None:
    came = await flood(tmp_path, REQUESTS, SEED)
    assert came.requests >= REQUESTS
    assert came.answered > came.connections // 4
