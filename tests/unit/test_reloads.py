"""Which settings a running daemon takes up."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

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
