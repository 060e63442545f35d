"""`tsd hot` on the engines that are servers: the daemon's real puts and scans are counted by range."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_bigtable, on_cassandra, on_hbase
from tsd.daemon.settings import now_ms

pytestmark = pytest.mark.slow

ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("hbase", "cassandra", "bigtable")]
SETTINGS: dict[str, Callable[..., dict[str, str]]] = {"cassandra": on_cassandra, "bigtable": on_bigtable}
HOSTS = 50


@pytest.mark.parametrize("engine", ENGINES)
def test_hot_hour_is_shown(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    peer = request.getfixturevalue(engine)
    settings = on_hbase(peer, peer.unused_tables()) if engine == "hbase" else SETTINGS[engine](peer)
    tsd = Tsd(tmp_path / "state", settings)
    assert tsd.run("create-tables").status == 0
    base = now_ms() // 1000 // 3600 * 3600 - 86_400
    lines = [f"put hot {base} 1 host=h{host:02d}\n" for host in range(HOSTS)] + [f"put cold {base} 1 host=h00\n"]
    with tsd.serve() as served:
        served.send_lines("".join(lines).encode())
        served.flush()
        asked = tsd.run("query", "--url", f"http://127.0.0.1:{served.port}", str(base), str(base + 3600), "sum:hot")
        assert asked.status == 0, asked
        found = json.loads(tsd.run("hot", "--since", "1h", "--limit", "1000", "--json").out)
    [hour] = [one for one in found["ranges"] if one.get("metric") == "hot" and one.get("time") == base]
    assert hour["cellsWritten"] >= HOSTS // 2
    assert hour["cellsRead"] >= HOSTS // 2
    assert 0 < hour["writeShare"] <= 1
