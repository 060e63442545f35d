"""Logs as journald takes them: each line with its priority, and none that it would cut."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tsd import log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers


def test_each_line_has_its_priority(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("debug", "journald", lambda: 0.0)
    ours = structlog.get_logger("test")
    ours.debug("one")
    ours.warning("two", name="a\n<0>b", count=2)
    ours.error("three\nfour")
    try:
        raise ValueError("five\nsix")
    except ValueError:
        ours.exception("seven")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["<7>one", "<4>two name='a\\n<0>b' count=2", "<3>three", "<3>four"]
    assert lines[4] == "<3>seven"
    assert lines[-2:] == ["<3>ValueError: five", "<3>six"]
    assert all(line.startswith("<3>") for line in lines[4:])


def test_a_long_line_stays_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "journald", lambda: 0.0)
    structlog.get_logger("test").info("long", text="x" * 100_000)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("<6>long text='xxx")
    assert line.endswith(f"… ({len('long text=') + 100_002 - log.LINE_CHARS} more)")


@pytest.mark.parametrize("ours", [True, False])
def test_priorities_are_for_journald_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ours: bool) -> None:
    """A service's shell may have sent standard error elsewhere, and the variable stays."""
    with (tmp_path / "err").open("w+") as file:
        status = os.fstat(file.fileno())
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + (not ours)}")
        log.configure("info", "auto", lambda: 0.0)
        structlog.get_logger("test").info("one")
        file.seek(0)
        assert file.read().startswith("<6>") == ours


def test_where_nobody_listens_any_more_the_daemon_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        log.configure("info", "journald", lambda: 0.0)
        structlog.get_logger("test").info("one")
        structlog.get_logger("test").exception("two")
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writing)  # where what it still holds goes at its end
