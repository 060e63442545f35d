"""/metrics, as the Prometheus client library parses it."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tsd.api.metrics import METRICS
from tsd.codec.names import Kind
from tsd.daemon.settings import now_ms
from tsd.store.timing import Latency

PUT = b"put sys.load 1500000000 1 host=a\n"


class Metrics(NamedTuple):
    """The metrics of one answer."""

    types: Mapping[str, str]  # by name, a counter's without _total
    values: Mapping[str, float]  # by name and labels: a_total{b="c"}


async def metrics(daemon: Running, *headers: str) -> Metrics:
    """The metrics of a daemon; fails if a name occurs twice or has no help text."""
    response = await http_request(daemon, "/metrics", *headers)
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    types: dict[str, str] = {}
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(response.body.decode()):
        assert family.name not in types
        assert family.documentation
        types[family.name] = family.type
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in values
            values[name] = sample.value
    return Metrics(types, values)


async def test_ledger_counts_every_line(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(PUT * 3 + b"put sys.load x 1 host=a\nput sys.load\n")
        found = await metrics(daemon)
        assert found.values["tsd_lines_received_total"] == 5
        assert found.values["tsd_lines_journaled"] + found.values["tsd_lines_stored_total"] == 3
        assert found.values['tsd_lines_refused_total{reason="invalid_values"}'] == 1
        assert found.values['tsd_lines_refused_total{reason="illegal_arguments"}'] == 1
        assert found.values["tsd_ledger_balance"] == 0
        assert found.types["tsd_lines_received"] == "counter"
        assert found.types["tsd_lines_journaled"] == "gauge"
        await daemon.daemon.flush()
        found = await metrics(daemon)
        assert (found.values["tsd_lines_journaled"], found.values["tsd_lines_stored_total"]) == (0, 3)


async def test_durations_are_histograms(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(PUT)
        await daemon.daemon.flush()
        await http_post(
            daemon, "/api/put", b'{"metric":"sys.load","timestamp":1500000001,"value":1,"tags":{"host":"a"}}'
        )
        assert (await http_request(daemon, "/api/query?start=1500000000&end=1500000002&m=sum:sys.load")).status == 200
        values = (await metrics(daemon)).values
        for name in ("tsd_journal_sync_duration_seconds", "tsd_journal_wait_duration_seconds"):
            assert values[f"{name}_count"] >= 2
            assert values[f'{name}_bucket{{le="+Inf"}}'] == values[f"{name}_count"]
            assert values[f"{name}_sum"] > 0
            assert values[f'{name}_bucket{{le="0.001"}}'] <= values[f'{name}_bucket{{le="30.0"}}']
        assert values['tsd_http_request_duration_seconds_count{kind="put"}'] == 1
        assert values['tsd_http_request_duration_seconds_count{kind="query"}'] == 1
        for call in ("get", "put", "read_cells", "sync"):
            assert values[f'tsd_store_call_duration_seconds_count{{call="{call}"}}'] > 0, call


async def test_health_checks_are_gauges(tmp_path: Path) -> None:
    settings = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1"}
    settings |= {"tsd.core.drain_timeout": "0", "tsd.core.auto_create_metrics": "true"}
    async with running(tmp_path, settings) as daemon:
        await daemon.send_lines(PUT)
        await daemon.daemon.flush()
        values = (await metrics(daemon)).values
        assert values["tsd_ready"] == 0
        assert [values[f'tsd_healthy{{check="{check}"}}'] for check in ("write", "read", "store")] == [1, 0, 0]
        assert values["tsd_store_errors_total"] > 0
        assert values["tsd_store_write_failures_total"] > 0
        assert values["tsd_lines_journaled"] == 1


async def test_replayed_point_is_as_old_as_its_journal(tmp_path: Path) -> None:
    away = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1", "tsd.core.drain_timeout": "0"}
    away |= {"tsd.core.auto_create_metrics": "true"}
    async with running(tmp_path, away) as daemon:
        await daemon.send_lines(PUT)
    [segment] = (tmp_path / "journal").glob("*.journal")
    os.utime(segment, (segment.stat().st_mtime - 1000,) * 2)
    async with running(tmp_path, away) as daemon:
        assert 1000 <= (await metrics(daemon)).values["tsd_oldest_unstored_seconds"] < 1100


async def test_process_metrics_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The systemd units hide /proc/stat, without which the client library has no process metrics."""
    before = now_ms() // 1000
    monkeypatch.setattr("tsd.api.metrics.ProcessCollector", partial(ProcessCollector, proc=str(tmp_path)))
    async with running(tmp_path / "state") as daemon:
        first, second = (await metrics(daemon)).values, (await metrics(daemon)).values
    assert "process_start_time_seconds" not in first
    assert before <= first["tsd_start_time_seconds"] == second["tsd_start_time_seconds"] <= now_ms() // 1000
    assert 0 < first["tsd_cpu_seconds_total"] <= second["tsd_cpu_seconds_total"]
    assert first["tsd_resident_memory_bytes"] > 0


async def test_every_statistic_has_a_metric_type(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(PUT)
        stats = daemon.daemon.statistics()
        missing = {
            f"{stat.name} {stat.tag}".strip()
            for stat in stats
            if stat.name not in METRICS
            and f"{stat.name} {stat.tag}" not in METRICS
            and not stat.name.startswith("store.")
        }
        assert missing == set()
        values = (await metrics(daemon)).values
        for kind in Kind:
            assert values[f'tsd_uids_used_ratio{{kind="{kind.value}"}}'] == 1 / (2**24 - 1)


async def test_openmetrics_format_on_request(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        response = await http_request(daemon, "/metrics", "Accept: application/openmetrics-text; version=1.0.0")
        assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert response.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(("took_s", "place"), [(0, 0), (0.001, 0), (0.0011, 1), (30, 13), (31, 14)])
def test_bucket_includes_its_upper_bound(took_s: float, place: int) -> None:
    latency = Latency()
    latency.record(took_s)
    assert latency.counts.index(1) == place
    assert latency.total_s == took_s
