"""`tsd retention` as operators run it, and a daemon that deletes what has expired."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_bigtable, on_cassandra, on_hbase
from tests.peers.hbase import RunningHbase
from tsd.daemon.settings import now_ms

pytestmark = pytest.mark.slow

HOUR_S = 3600
RULES = {"tsd.retention.rules": "debug.*=2d; *=10d", "tsd.core.auto_create_metrics": "true"}


EDGES = (2 * 24, 10 * 24)  # hours that expire with the next one, by both rules
HOURS = [hour for hour in reversed(range(20 * 24)) if hour not in EDGES]


def lines(metric: str) -> list[str]:
    """Return a line of most hours of the last 20 days, the current hour last."""
    now_s = now_ms() // 1000
    return [f"{metric} {now_s - hour * HOUR_S} {hour} host=a" for hour in HOURS]


def stored(tsd: Tsd, metric: str) -> int:
    return len(tsd.lines(metric, start="30d-ago"))


def settings_on(engine: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of an engine with new tables."""
    if engine == "hbase":
        hbase: RunningHbase = request.getfixturevalue("hbase")
        return on_hbase(hbase, hbase.new_tables())
    if engine == "cassandra":
        return on_cassandra(request.getfixturevalue("cassandra"))
    return on_bigtable(request.getfixturevalue("bigtable")) if engine == "bigtable" else {}


ENGINES = [
    "embedded",
    *(pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("hbase", "cassandra", "bigtable")),
]


@pytest.fixture(params=ENGINES)
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """A store with 20 days of two metrics."""
    made = Tsd(tmp_path / "state", {**RULES, **settings_on(request.param, request)})
    if request.param in ("cassandra", "bigtable"):
        assert made.run("create-tables").status == 0
    text = "\n".join([*lines("debug.x"), *lines("sys.cpu"), ""])
    assert made.run("import", "--auto-metric", "-", stdin=text.encode()).status == 0
    return made


def test_dry_run_says_what_is_deleted(tsd: Tsd) -> None:
    before = stored(tsd, "debug.x"), stored(tsd, "sys.cpu")
    shown = tsd.run("retention", "--dry-run", "--exact", "--json")
    assert (shown.status, shown.err) == (0, "")
    rules = json.loads(shown.out)["rules"]
    assert (stored(tsd, "debug.x"), stored(tsd, "sys.cpu")) == before
    done = tsd.run("retention", "--trust-clock", "--json")
    assert done.status == 0
    deleted = json.loads(done.out)["rules"]
    assert {rule: amount["points"] for rule, amount in deleted.items()} == pytest.approx(
        {rule: amount["points"] for rule, amount in rules.items()}, rel=0.05
    )
    assert stored(tsd, "debug.x") == before[0] - rules["debug.*=2d"]["points"]
    assert stored(tsd, "sys.cpu") == before[1] - rules["*=10d"]["points"]
    assert (stored(tsd, "debug.x"), stored(tsd, "sys.cpu")) == (2 * 24, 10 * 24 - 1)


def test_clock_is_not_trusted_without_points_or_an_operator(tsd: Tsd) -> None:
    refused = tsd.run("retention")
    assert refused.status == 1
    assert "--trust-clock" in refused.err
    assert stored(tsd, "debug.x") == len(HOURS)


def test_daemon_deletes_once_points_have_shown_the_time(tsd: Tsd) -> None:
    with tsd.serve() as served:
        waiting = tsd.run("retention")
        assert waiting.status == 1
        assert served.stats()["retention.waiting"] == 1
        served.send_lines(f"put debug.y {now_ms() // 1000} 1 host=a\n".encode())
        served.flush()
        done = tsd.run("retention", "--json")
        assert done.status == 0, done
        assert set(json.loads(done.out)["rules"]) == {"debug.*=2d", "*=10d"}
        stats = served.stats()
        assert stats["retention.points"] == sum(rule["points"] for rule in json.loads(done.out)["rules"].values())
        assert stats["retention.waiting"] == 0
    assert stored(tsd, "debug.x") == 2 * 24


def test_retention_without_rules_is_refused(tmp_path: Path) -> None:
    refused = Tsd(tmp_path / "state").run("retention", "--dry-run")
    assert refused.status == 1
    assert "tsd.retention.rules" in refused.err


def test_a_daemon_without_rules_says_where_to_set_them(tmp_path: Path) -> None:
    with Tsd(tmp_path / "state").serve():
        refused = Tsd(tmp_path / "state", RULES).run("retention")
    assert refused.status == 1
    assert "has no rules that let points expire: set tsd.retention.rules" in refused.err
