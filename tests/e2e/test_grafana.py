"""What Grafana's OpenTSDB data source asks, of all versions that it has a setting for, and what it reads of the
answers."""

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import HOST, PATIENCE_S, Served, Tsd, on_hbase

START_S = 1356998400
AUTO = {"tsd.core.auto_create_metrics": "true"}
ENGINES = ["embedded", pytest.param("hbase", marks=pytest.mark.hbase)]
# By the version that is set: tags up to 2.1, filters from 2.2, explicitTags from 2.3, arrays from 2.4.
OLD, FILTERS, EXPLICIT, ARRAYS = "<=2.1", "2.2", "2.3", "2.4"


class Grafana:
    """Asks as its back end does."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> Any:
        """The JSON of a 200."""
        return self._ask("GET", path)

    def query(self, version: str, sub: Mapping[str, Any], start: int = START_S, end: int = START_S + 3600) -> Any:
        """One panel's query: a request has one sub query."""
        filters = sub.pop("filters", []) if isinstance(sub, dict) else []
        wanted = {"aggregator": "sum", **sub}
        if version == OLD:
            wanted["tags"] = {each["tagk"]: each["filter"] for each in filters}
        else:
            wanted["filters"] = filters
        if version in (OLD, FILTERS):
            wanted.pop("explicitTags", None)
        path = "/api/query?arrays=true" if version == ARRAYS else "/api/query"
        return self._ask("POST", path, {"start": start, "end": end, "queries": [wanted]})

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, (response.status, text)
            return json.loads(text)
        finally:
            connection.close()


@pytest.fixture(scope="module", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("grafana") / "state"
    settings = dict(AUTO)
    if request.param == "hbase":
        hbase = request.getfixturevalue("hbase")
        settings |= on_hbase(hbase, hbase.new_tables())
    lines = [
        f"put graf.cpu {START_S + 10 * i} {i + host / 2} host=web0{host} dc={'ab'[host % 2]}\n"
        for i in range(30)
        for host in range(3)
    ]
    with Tsd(folder, settings).serve() as served:
        assert served.tell("".join(lines).encode()) == b"synced 90\n"
        yield served


@pytest.fixture
def grafana(served: Served) -> Grafana:
    return Grafana(served.port)


def points(found: Mapping[str, Any], version: str) -> dict[int, float]:
    """The points of a series as the data source reads them: keys are whole seconds, values numbers."""
    pairs = found["dps"] if version == ARRAYS else found["dps"].items()
    assert all(type(value) in (int, float) for _, value in pairs)
    return {int(time): value for time, value in pairs}


def test_the_data_source_is_healthy(grafana: Grafana) -> None:
    assert grafana.get("/api/suggest?q=cpu&type=metrics") == []


def test_names_are_suggested_while_they_are_typed(grafana: Grafana) -> None:
    assert grafana.get("/api/suggest?type=metrics&q=graf&max=1000") == ["graf.cpu"]
    assert grafana.get("/api/suggest?type=tagk&q=&max=1000") == ["dc", "host"]
    assert grafana.get("/api/suggest?type=tagv&q=web&max=2") == ["web00", "web01"]


def test_aggregators_and_filters_can_be_chosen(grafana: Grafana) -> None:
    aggregators = grafana.get("/api/aggregators")
    assert {"sum", "avg", "none", "p99"} <= set(aggregators)
    assert {"literal_or", "wildcard", "regexp", "iliteral_or"} <= set(grafana.get("/api/config/filters"))


def test_a_variable_s_values_come_from_lookups(grafana: Grafana) -> None:
    every = grafana.get("/api/search/lookup?m=graf.cpu&limit=1000")["results"]
    assert {each["tags"]["host"] for each in every} == {"web00", "web01", "web02"}
    some = grafana.get("/api/search/lookup?m=graf.cpu%7Bhost=*,dc=a%7D&limit=1000")["results"]
    assert {each["tags"]["host"] for each in some} == {"web00", "web02"}


@pytest.mark.parametrize("version", [OLD, FILTERS, EXPLICIT, ARRAYS])
class TestPanels:
    """The queries of panels."""

    def test_each_host_has_a_series(self, grafana: Grafana, version: str) -> None:
        hosts = [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}]
        found = grafana.query(version, {"metric": "graf.cpu", "downsample": "1m-avg", "filters": hosts})
        assert [each["tags"] for each in found] == [{"host": f"web0{i}", "dc": "ab"[i % 2]} for i in range(3)]
        for host, each in enumerate(found):
            assert each["metric"] == "graf.cpu"
            assert each["aggregateTags"] == []
            minutes = {START_S + 60 * m: 6 * m + 2.5 + host / 2 for m in range(5)}
            assert points(each, version) == minutes

    def test_all_hosts_are_one_series(self, grafana: Grafana, version: str) -> None:
        [found] = grafana.query(version, {"metric": "graf.cpu"})
        assert sorted(found["aggregateTags"]) == ["dc", "host"]
        assert points(found, version) == {START_S + 10 * i: 3 * i + 1.5 for i in range(30)}

    def test_a_rate_of_a_counter(self, grafana: Grafana, version: str) -> None:
        options = {"counter": True, "counterMax": 1000, "resetValue": 10, "dropResets": False}
        host = [{"type": "literal_or", "tagk": "host", "filter": "web01", "groupBy": False}]
        sub = {"metric": "graf.cpu", "rate": True, "rateOptions": options, "filters": host}
        [found] = grafana.query(version, sub)
        assert set(points(found, version).values()) == {0.1}

    def test_explicit_tags(self, grafana: Grafana, version: str) -> None:
        host = [{"type": "literal_or", "tagk": "host", "filter": "web01", "groupBy": False}]
        found = grafana.query(version, {"metric": "graf.cpu", "filters": host, "explicitTags": True})
        assert len(found) == (1 if version in (OLD, FILTERS) else 0)


def test_a_range_without_points_is_an_empty_panel(grafana: Grafana) -> None:
    assert grafana.query(ARRAYS, {"metric": "graf.cpu"}, START_S + 86400, START_S + 90000) == []
