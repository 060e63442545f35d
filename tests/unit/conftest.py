"""Fixtures of tests in one process."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where messages to systemd come in: as it reads them, from a socket of the test's."""
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    monkeypatch.setenv("NOTIFY_SOCKET", "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("notify")
        channel.setblocking(False)
        yield channel
