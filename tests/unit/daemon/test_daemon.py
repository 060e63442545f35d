"""Which settings a running daemon takes up."""

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.running import running
from tsd.config import Config, Loaded, load
from tsd.errors import BadConfig
from tsd.reloads import Apply, reread


def loading(path: Path, text: str) -> Loaded:
    path.write_text(text)
    return load(path)


def test_what_may_change_does_and_the_rest_is_named(tmp_path: Path) -> None:
    told: list[int] = []
    live: dict[str, Apply] = {"tsd.core.drain_timeout": lambda wanted: told.append(wanted.drain_ms)}
    text = "tsd.core.drain_timeout = 5\ntsd.network.port = 1\ntsd.mode = ro\n"
    with capture_logs() as logs:
        config = reread(Config(), lambda: loading(tmp_path / "c", text), live)
    assert config == Config(drain_ms=5)
    assert told == [5]
    assert [event for event in logs if event["log_level"] == "warning"] == [
        {
            "event": "settings have changed that only a restart can make act",
            "keys": "tsd.network.port tsd.mode",
            "log_level": "warning",
        }
    ]


def test_what_is_as_it_was_is_not_touched(tmp_path: Path) -> None:
    def touched(_: Config) -> None:
        raise AssertionError

    with capture_logs() as logs:
        assert reread(Config(), lambda: loading(tmp_path / "c", ""), {"tsd.log.level": touched}) == Config()
    assert logs == []


def test_of_settings_that_cannot_be_used_none_is(tmp_path: Path) -> None:
    text = "tsd.core.drain_timeout = 5\ntsd.log.level = loud\n"
    with pytest.raises(BadConfig):
        reread(Config(), lambda: loading(tmp_path / "c", text), {"tsd.core.drain_timeout": lambda _: None})


async def test_a_journal_that_was_full_and_may_grow_takes_points_again(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        daemon = served.daemon
        await served.tell(b"put m 1700000000 1 a=b\n")
        daemon.live["tsd.journal.max_bytes"](replace(daemon.config, journal_max_bytes=1))
        assert daemon.gate.held
        daemon.live["tsd.journal.max_bytes"](daemon.config)
        assert not daemon.gate.held
        assert await served.tell(b"put m 1700000001 1 a=b\n") == b"synced 1\n"
