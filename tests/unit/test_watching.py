"""What is handed to operators for watching: alert rules, dashboard and documents speak of what there is."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.running import running
from tests.unit.api.http_requests import http_request
from tsd.api.metrics import METRICS

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "conf" / "prometheus" / "tsd.rules.yml").read_text()
DASHBOARD = json.loads((ROOT / "conf" / "grafana" / "tsd-dashboard.json").read_text())
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
FAILURES = (ROOT / "docs" / "failures.md").read_text()
METRIC = re.compile(r"\b(?:tsd|process)_[a-z_]+")


def panels() -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def anchor(heading: str) -> str:
    """Where a link to a heading leads, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


async def test_every_mentioned_metric_exists(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.canary.enable": "true"}) as daemon:
        await daemon.send_lines(b"put a 1500000000 1 b=c\n")
        text = (await http_request(daemon, "/metrics")).body.decode()
    exported = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    exported |= {
        f"tsd_{how.name}{'_total' if how.is_counter else ''}" for how in METRICS.values() if how
    }  # by the settings
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    pages = {"operations.md": OPERATIONS, "failures.md": FAILURES}
    for where, spoken in {"rules": RULES, "dashboard": "\n".join(expressions), **pages}.items():
        names = set(METRIC.findall(spoken))
        assert len(names) > 8
        missing = {name for name in names if name not in exported and f"{name}_count" not in exported}
        assert missing == set(), where


def test_dashboard_is_complete() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in everything]
    taken = {(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
    assert len(taken) == sum(p["w"] * p["h"] for p in places)  # none lies on another
    assert all(p["x"] + p["w"] <= 24 for p in places)
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert "$instance" in target["expr"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"source", "instance"}
    rows = [panel["title"] for panel in everything if panel["type"] == "row"]
    assert rows == [
        "Now", "Ledger", "Ingest", "Journal", "Store", "Compaction", "Queries", "Clients and names", "Process"
    ]  # fmt: skip


def test_every_alert_names_a_remedy() -> None:
    headings = {anchor(heading) for heading in re.findall(r"^#+ (.+)$", FAILURES, re.MULTILINE)}
    books = re.findall(r"runbook: docs/failures\.md#(.+)", RULES)
    assert len(books) == RULES.count("- alert:") == len(re.findall(r"severity: (?:critical|warning)\}", RULES))
    assert set(books) <= headings
    assert set(re.findall(r"\]\(#([^)]+)\)", FAILURES)) <= headings
