"""A daemon: reload of settings, its background tasks."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest
from structlog.testing import capture_logs

from tests.faults.query_clients import http_request
from tests.running import running
from tests.unit.server.web_parts import post, read_response
from tsd.config.loader import Loaded
from tsd.config.settings import Config
from tsd.daemon.daemon import Apply, apply_settings
from tsd.daemon.settings import load_config
from tsd.errors import BadConfig, StoreDown
from tsd.ingest.writer import Writer
from tsd.server.http.router import STORE_FAILED


def loading(path: Path, text: str) -> Loaded:
    path.write_text(text)
    return load_config(path)


def test_live_settings_change_and_others_are_logged(tmp_path: Path) -> None:
    applied: list[int] = []
    live: dict[str, Apply] = {"tsd.core.drain_timeout": lambda wanted: applied.append(wanted.drain_ms)}
    text = "tsd.core.drain_timeout = 5\ntsd.network.port = 1\ntsd.mode = ro\n"
    with capture_logs() as logs:
        config = apply_settings(Config(), lambda: loading(tmp_path / "c", text), live)
    assert config == Config(drain_ms=5)
    assert applied == [5]
    assert [event for event in logs if event["log_level"] == "warning"] == [
        {
            "event": "settings.restart_required",
            "keys": "tsd.network.port tsd.mode",
            "log_level": "warning",
        }
    ]


def test_unchanged_settings_are_not_applied(tmp_path: Path) -> None:
    def touched(_: Config) -> None:
        raise AssertionError

    with capture_logs() as logs:
        assert apply_settings(Config(), lambda: loading(tmp_path / "c", ""), {"tsd.log.level": touched}) == Config()
    assert logs == []


def test_invalid_settings_change_nothing(tmp_path: Path) -> None:
    text = "tsd.core.drain_timeout = 5\ntsd.log.level = loud\n"
    with pytest.raises(BadConfig):
        apply_settings(Config(), lambda: loading(tmp_path / "c", text), {"tsd.core.drain_timeout": lambda _: None})


async def test_larger_journal_ends_backpressure(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        daemon = served.daemon
        await served.send_lines(b"put m 1700000000 1 a=b\n")
        daemon.live["tsd.journal.max_bytes"](replace(daemon.config, journal_max_bytes=1))
        assert daemon.ingest.backpressure.reasons
        daemon.live["tsd.journal.max_bytes"](daemon.config)
        assert not daemon.ingest.backpressure.reasons
        assert await served.send_lines(b"put m 1700000001 1 a=b\n") == b"synced 1\n"


@pytest.mark.parametrize("path", ["query/last?timeseries=m&resolve=true", "search/lookup?m=m"])
async def test_answers_without_points_that_only_the_journal_has_are_errors(tmp_path: Path, path: str) -> None:
    """Regression: the store took no points, but could be read, and the answer lacked them with status 200."""
    async with running(tmp_path, {"tsd.core.auto_create_metrics": "true"}) as served:
        await served.send_lines(b"put m 1700000000 1 a=b\n")
        with patch.object(served.daemon.store, "put", AsyncMock(side_effect=StoreDown("as the test wants"))):
            await served.send_lines(b"put m 1700003600 1 a=c\n")
            assert (await http_request(served.port, f"/api/{path}"))[0] == STORE_FAILED
        await served.daemon.ingest.writer.flush()
        status, answer = await http_request(served.port, f"/api/{path}")
        series = answer if isinstance(answer, list) else answer["results"]
        assert (status, [one["tags"] for one in series]) == (200, [{"a": "b"}, {"a": "c"}])


async def test_daemon_serves_although_points_cannot_be_packed(tmp_path: Path) -> None:
    """Regression: an error of the kernel, such as one of mmap, ended the daemon."""
    packing = AsyncMock(side_effect=[OSError("as the test wants"), None])
    with patch.object(Writer, "pack_hours", packing), capture_logs() as logs:
        async with running(tmp_path) as served:
            await served.send_lines(b"put m 1700000000 1 a=b\n")
    assert [line["task"] for line in logs if line["event"] == "background_task.failed"] == ["packing"]


@pytest.mark.parametrize("protocol", ["telnet", "http"])
async def test_refused_points_are_in_the_log(tmp_path: Path, protocol: str) -> None:
    """OpenTSDB's answers say so: `Please see the TSD logs`."""
    with capture_logs() as logs:
        async with running(tmp_path / "state") as daemon, daemon.client() as client:
            if protocol == "telnet":
                await client.send(b"put m 1500000000 many host=a\nsync\n")
                await client.read_until(b"synced 0\n")
            else:
                body = b'{"metric":"m","timestamp":1500000000,"value":"many","tags":{"host":"a"}}'
                await client.send(post("/api/put", body))
                assert (await read_response(client)).status == 400
    [event] = [entry for entry in logs if entry["event"] == "lines.refused"]
    assert (event["lines"], event["reason"]) == (1, "invalid_values")
    assert event["peer"].startswith("127.0.0.1:")
