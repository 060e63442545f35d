"""A real Prometheus reads the daemon's metrics, the shipped alert rules and the dashboard's queries."""

import http.client
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from scripts.peers.ports import pick
from tests.e2e.command import HOST, PATIENCE_S, ROOT, Served, Tsd, until

RULES = ROOT / "conf" / "prometheus" / "tsd.rules.yml"
DASHBOARD = json.loads((ROOT / "conf" / "grafana" / "tsd-dashboard.json").read_text())
SELDOM = " > 0"  # queries with this end have results only during problems
ELSEWHERE = ("tsd_tls_certificate_left_seconds{", "tsd_store_gateways_down{")  # metrics only with TLS or HBase


def run(program: Path, *words: str | Path, folder: Path = RULES.parent, stdin: bytes = b"") -> str:
    """Return a program's output. Fail with it if the exit status is not 0."""
    done = subprocess.run([program, *words], cwd=folder, input=stdin, capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


def get(port: int, path: str) -> bytes:
    """Return the body of an answer with status 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, (path, response.status, body)
        return body
    finally:
        connection.close()


def test_rules_pass_their_unit_tests(program: Callable[[str], Path]) -> None:
    promtool = program("promtool")
    assert "SUCCESS" in run(promtool, "check", "rules", RULES)
    assert "SUCCESS" in run(promtool, "test", "rules", "tsd.rules.test.yml")


def test_every_rule_has_a_unit_test() -> None:
    alerts = {line.split()[-1] for line in RULES.read_text().splitlines() if "- alert:" in line}
    tried = RULES.with_name("tsd.rules.test.yml").read_text()
    assert {alert for alert in alerts if alert not in tried} == set()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A daemon with some values in its metrics."""
    with Tsd(tmp_path / "state", {"tsd.canary.enable": "true"}).serve() as served:
        assert b"synced 1\n" in served.send_lines(b"put a.b 1500000000 1 host=a\nput oops\n")
        served.flush()
        get(served.port, "/api/query?start=1500000000&end=1500000001&m=sum:a.b")
        yield served


def test_prometheus_scrapes_all_metrics(served: Served, tmp_path: Path, program: Callable[[str], Path]) -> None:
    assert run(program("promtool"), "check", "metrics", stdin=get(served.port, "/metrics")) == ""  # no advice
    with prometheus(program("prometheus"), tmp_path, served.port) as port:
        until(lambda: bool(fetch_values(port, "rate(tsd_cpu_seconds_total[1m])")), "two scrapes of the daemon")
        assert all(value == "1" for value in fetch_values(port, "tsd_ready"))
        for query in queries():
            if not query.endswith(SELDOM) and not query.startswith(ELSEWHERE):
                until(lambda query=query: bool(fetch_values(port, query)), query)  # type: ignore[misc]
        until(lambda: all(rule["health"] != "unknown" for rule in rules(port)), "an evaluation of each rule")
        assert [rule["name"] for rule in rules(port) if rule["health"] != "ok"] == []


def rules(port: int) -> list[dict[str, Any]]:
    """Return the rules with the state of their last evaluation."""
    groups = json.loads(get(port, "/api/v1/rules"))["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    """The dashboard's queries with their variables replaced."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    found += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    assert len(found) > 40
    return [expr.replace("$instance", ".*").replace("$__rate_interval", "1m") for expr in found]


def fetch_values(port: int, query: str) -> list[str]:
    """Return the values of a query. Fail if Prometheus refuses it."""
    answer: dict[str, Any] = json.loads(get(port, "/api/v1/query?" + urlencode({"query": query})))
    assert answer["status"] == "success", answer
    return [series["value"][1] for series in answer["data"]["result"]]


@contextmanager
def prometheus(server: Path, folder: Path, target: int) -> Iterator[int]:
    """Run a Prometheus that scrapes the daemon every second. Yield its port."""
    port = pick(0)
    job = {"job_name": "tsd", "static_configs": [{"targets": [f"{HOST}:{target}"]}]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [job],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings))  # JSON is valid YAML
    places = {"config.file": config, "storage.tsdb.path": folder / "data", "web.listen-address": f"{HOST}:{port}"}
    words = [server, *(f"--{option}={place}" for option, place in places.items())]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            output = []
            for line in process.stderr:
                output.append(line)
                if "Server is ready to receive web requests" in line:
                    break
            else:
                pytest.fail(f"Prometheus exited: {''.join(output)}")
            listener = threading.Thread(target=process.stderr.read)  # a full pipe would block it
            listener.start()
            yield port
        finally:
            process.kill()
