"""Requests of Grafana's OpenTSDB data source, for every version in its settings, and the parts of the answers that it
reads: requests of its back end, and those that older versions send from the browser."""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import HOST, PATIENCE_S, Served, Tsd, on_hbase
from tsd.daemon.settings import now_ms

START_S = 1356998400
AUTO = {"tsd.core.auto_create_metrics": "true"}
ENGINES = ["embedded", pytest.param("hbase", marks=pytest.mark.hbase)]
# By the configured version: tags up to 2.1, filters from 2.2, explicitTags from 2.3, arrays from 2.4.
OLD, FILTERS, EXPLICIT, ARRAYS = "<=2.1", "2.2", "2.3", "2.4"


class Grafana:
    """Sends requests as the data source's back end."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> Any:
        """Return the JSON of an answer with status 200."""
        return self._request("GET", path)

    def query(self, version: str, sub: Mapping[str, Any], start: int = START_S, end: int = START_S + 3600) -> Any:
        """Send the query of one panel: a request has one sub query."""
        filters = sub.pop("filters", []) if isinstance(sub, dict) else []
        wanted = {"aggregator": "sum", **sub}
        if version == OLD:
            wanted["tags"] = {each["tagk"]: each["filter"] for each in filters}
        else:
            wanted["filters"] = filters
        if version in (OLD, FILTERS):
            wanted.pop("explicitTags", None)
        path = "/api/query?arrays=true" if version == ARRAYS else "/api/query"
        return self.post(path, {"start": start, "end": end, "queries": [wanted]})

    def from_browser(self, queries: Sequence[Mapping[str, Any]], **more: Any) -> Any:
        """Send all queries of a panel at once, with times in ms or as text; without an end up to now."""
        return self.post("/api/query", {"queries": queries, "msResolution": False, "globalAnnotations": True, **more})

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of an answer with status 200."""
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=PATIENCE_S)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
            )
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
    lines += [f"put noted.cpu {START_S + 10 * i} {i} host=web00\n" for i in range(3)]
    with Tsd(folder, settings).serve() as served:
        assert served.send_lines("".join(lines).encode()) == b"synced 93\n"
        yield served


@pytest.fixture(scope="module")
def noted(served: Served) -> Grafana:
    """Annotate a metric: two of its series, and one global annotation between them."""
    grafana = Grafana(served.port)
    [series] = grafana.get("/api/search/lookup?m=noted.cpu&limit=1000")["results"]
    for start, tsuid in ((START_S + 7, series["tsuid"]), (START_S + 9, ""), (START_S + 12, series["tsuid"])):
        note = {"startTime": start, "tsuid": tsuid, "description": f"at {start}", "notes": "more"}
        assert grafana.post("/api/annotation", note)["description"] == f"at {start}"
    return grafana


@pytest.fixture
def grafana(served: Served) -> Grafana:
    return Grafana(served.port)


def points(found: Mapping[str, Any], version: str) -> dict[int, float]:
    """Return a series' points as the data source reads them: keys are whole seconds, values numbers."""
    pairs = found["dps"] if version == ARRAYS else found["dps"].items()
    assert all(type(value) in (int, float) for _, value in pairs)
    return {int(time): value for time, value in pairs}


def test_data_source_health_check_passes(grafana: Grafana) -> None:
    assert grafana.get("/api/suggest?q=cpu&type=metrics") == []


def test_names_are_suggested(grafana: Grafana) -> None:
    assert grafana.get("/api/suggest?type=metrics&q=graf&max=1000") == ["graf.cpu"]
    assert grafana.get("/api/suggest?type=tagk&q=&max=1000") == ["dc", "host"]
    assert grafana.get("/api/suggest?type=tagv&q=web&max=2") == ["web00", "web01"]


def test_aggregators_and_filters_are_listed(grafana: Grafana) -> None:
    aggregators = grafana.get("/api/aggregators")
    assert {"sum", "avg", "none", "p99"} <= set(aggregators)
    assert {"literal_or", "wildcard", "regexp", "iliteral_or"} <= set(grafana.get("/api/config/filters"))


def test_variable_values_from_lookup(grafana: Grafana) -> None:
    every = grafana.get("/api/search/lookup?m=graf.cpu&limit=1000")["results"]
    assert {each["tags"]["host"] for each in every} == {"web00", "web01", "web02"}
    some = grafana.get("/api/search/lookup?m=graf.cpu%7Bhost=*,dc=a%7D&limit=1000")["results"]
    assert {each["tags"]["host"] for each in some} == {"web00", "web02"}


@pytest.mark.parametrize("version", [OLD, FILTERS, EXPLICIT, ARRAYS])
class TestPanels:
    """Queries of panels."""

    def test_group_by_host_gives_one_series_each(self, grafana: Grafana, version: str) -> None:
        hosts = [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}]
        found = grafana.query(version, {"metric": "graf.cpu", "downsample": "1m-avg", "filters": hosts})
        assert [each["tags"] for each in found] == [{"host": f"web0{i}", "dc": "ab"[i % 2]} for i in range(3)]
        for host, each in enumerate(found):
            assert each["metric"] == "graf.cpu"
            assert each["aggregateTags"] == []
            minutes = {START_S + 60 * m: 6 * m + 2.5 + host / 2 for m in range(5)}
            assert points(each, version) == minutes

    def test_aggregation_gives_one_series(self, grafana: Grafana, version: str) -> None:
        [found] = grafana.query(version, {"metric": "graf.cpu"})
        assert sorted(found["aggregateTags"]) == ["dc", "host"]
        assert points(found, version) == {START_S + 10 * i: 3 * i + 1.5 for i in range(30)}

    def test_counter_rate(self, grafana: Grafana, version: str) -> None:
        options = {"counter": True, "counterMax": 1000, "resetValue": 10, "dropResets": False}
        host = [{"type": "literal_or", "tagk": "host", "filter": "web01", "groupBy": False}]
        sub = {"metric": "graf.cpu", "rate": True, "rateOptions": options, "filters": host}
        [found] = grafana.query(version, sub)
        assert set(points(found, version).values()) == {0.1}

    def test_explicit_tags_select_series(self, grafana: Grafana, version: str) -> None:
        host = [{"type": "literal_or", "tagk": "host", "filter": "web01", "groupBy": False}]
        found = grafana.query(version, {"metric": "graf.cpu", "filters": host, "explicitTags": True})
        assert len(found) == (1 if version in (OLD, FILTERS) else 0)


class TestAnnotations:
    """Annotations of dashboards: of a series, or global."""

    def test_series_annotations_returned_with_points(self, noted: Grafana) -> None:
        [found] = noted.query(FILTERS, {"metric": "noted.cpu"})
        assert events(found["annotations"]) == [
            (START_S + 7, f"at {START_S + 7}"),
            (START_S + 12, f"at {START_S + 12}"),
        ]
        assert "globalAnnotations" not in found

    def test_global_annotations_returned_on_request(self, noted: Grafana) -> None:
        sub = {"aggregator": "sum", "metric": "noted.cpu"}
        [found] = noted.from_browser([sub], start=START_S * 1000, end=(START_S + 3600) * 1000)
        assert events(found["annotations"]) == [
            (START_S + 7, f"at {START_S + 7}"),
            (START_S + 12, f"at {START_S + 12}"),
        ]
        assert events(found["globalAnnotations"]) == [(START_S + 9, f"at {START_S + 9}")]

    def test_only_annotations_in_range_returned(self, noted: Grafana) -> None:
        sub = {"aggregator": "sum", "metric": "noted.cpu"}
        [found] = noted.from_browser([sub], start=(START_S + 10) * 1000, end=(START_S + 60) * 1000)
        assert events(found["annotations"]) == [(START_S + 12, f"at {START_S + 12}")]
        assert events(found.get("globalAnnotations", [])) == []


def events(notes: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Return annotations as the data source reads them: start in seconds, and text."""
    return [(note["startTime"], note["description"]) for note in notes]


class TestFromTheBrowser:
    """Requests of data sources without a back end: all queries of a panel at once."""

    SUBS: tuple[dict[str, Any], ...] = (
        {"aggregator": "avg", "metric": "graf.cpu"},
        {"aggregator": "max", "metric": "graf.cpu", "downsample": "1m-max"},
    )
    RANGE = {"start": START_S * 1000, "end": (START_S + 3600) * 1000}  # noqa: RUF012

    def test_each_series_names_its_query(self, grafana: Grafana) -> None:
        """By `query.index` from version 2.3 on; before, by the metric's name."""
        host = {"type": "literal_or", "tagk": "host", "filter": "web00|web01", "groupBy": True}
        queries = [{**self.SUBS[0], "filters": [host]}, self.SUBS[1]]
        found = grafana.from_browser(queries, showQuery=True, **self.RANGE)
        assert [(each["query"]["index"], each["metric"]) for each in found] == [(n, "graf.cpu") for n in (0, 0, 1)]
        assert [each["tags"].get("host") for each in found] == ["web00", "web01", None]
        assert all("query" not in each for each in grafana.from_browser(queries, **self.RANGE))

    def test_times_in_seconds_or_milliseconds(self, grafana: Grafana) -> None:
        [seconds] = grafana.from_browser(self.SUBS[:1], **self.RANGE)
        [in_ms] = grafana.from_browser(self.SUBS[:1], **{**self.RANGE, "msResolution": True})
        assert len(seconds["dps"]) == 30
        assert {1000 * time: value for time, value in points(seconds, OLD).items()} == points(in_ms, OLD)

    def test_missing_end_means_now(self, grafana: Grafana, served: Served) -> None:
        assert served.send_lines(b"put now.cpu %d 42 host=web00\n" % (now_ms() // 1000 - 60)).startswith(b"synced")
        [found] = grafana.from_browser([{"aggregator": "sum", "metric": "now.cpu"}], start="1h-ago")
        assert [*found["dps"].values()] == [42]
        [found] = grafana.from_browser([{"aggregator": "sum", "metric": "now.cpu"}], start=now_ms() - 3_600_000)
        assert [*found["dps"].values()] == [42]

    def test_counter_options_are_optional_numbers(self, grafana: Grafana) -> None:
        sub = {"aggregator": "sum", "metric": "graf.cpu", "rate": True, "tags": {"host": "web01"}}
        for options in ({"counter": False}, {"counter": True, "dropResets": True}, {"counter": True, "counterMax": 9}):
            [found] = grafana.from_browser([{**sub, "rateOptions": options}], **self.RANGE)
            assert set(points(found, OLD).values()) == {0.1}

    def test_menus_are_lists_of_strings(self, grafana: Grafana) -> None:
        assert grafana.get("/api/suggest?type=metrics&q=&max=1000")[:2] == ["graf.cpu", "noted.cpu"]
        assert all(isinstance(each, str) for each in grafana.get("/api/aggregators"))
        for help_ in grafana.get("/api/config/filters").values():
            assert all(map(help_.get, ("examples", "description")))
        assert all(isinstance(each, str) for each in grafana.get("/api/version").values())

    def test_variable_names_and_values_from_lookup(self, grafana: Grafana) -> None:
        named = grafana.get("/api/search/lookup?m=graf.cpu&limit=1000")["results"]
        assert {tagk for each in named for tagk in each["tags"]} == {"dc", "host"}
        some = grafana.get("/api/search/lookup?m=graf.cpu%7Bdc=*,host=web01%7D&limit=1000")["results"]
        assert [each["tags"]["dc"] for each in some] == ["b"]
        assert len(grafana.get("/api/search/lookup?m=graf.cpu&limit=2")["results"]) == 2


def test_range_without_points_gives_empty_panel(grafana: Grafana) -> None:
    assert grafana.query(ARRAYS, {"metric": "graf.cpu"}, START_S + 86400, START_S + 90000) == []
