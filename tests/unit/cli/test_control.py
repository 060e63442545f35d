"""Why a command does not reach the daemon."""

import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest

from tsd.cli.control import connect
from tsd.config.settings import Config
from tsd.errors import StoreDown


def refusal(folder: Path) -> str:
    with pytest.raises(StoreDown) as caught, connect(Config(path=str(folder))):
        raise AssertionError("a daemon runs")
    return str(caught.value)


def test_missing_daemon_is_reported_with_its_state_folder(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert str(tmp_path) in said
    assert "user" not in said


def test_daemon_that_accepts_no_connection_is_not_reported_as_missing(tmp_path: Path) -> None:
    """Regression: `tsd health` said of a stopped process that no daemon runs."""
    config = Config(path=str(tmp_path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen(0)
        with connect(config), pytest.raises(StoreDown, match="accepts no connection"):  # the first fills the queue
            connect(config, timeout_s=60)


def test_daemon_of_another_user_is_not_reported_as_missing() -> None:
    """Regression: `tsd rejected --replay` said that no daemon runs."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as made, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(made, "control.sock")))
        listener.listen()
        Path(made).chmod(0)
        if user == 0:
            os.seteuid(65534)
        try:
            said = refusal(Path(made))
        finally:
            os.seteuid(user)
            Path(made).chmod(0o700)
    assert os.strerror(errno.EACCES) in said
    assert "user" in said
