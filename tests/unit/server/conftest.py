"""Fixtures for tests of the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.running import Running, running


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    """A daemon with default settings, in this process."""
    async with running(tmp_path) as daemon:
        yield daemon
