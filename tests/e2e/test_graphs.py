"""`/q` of a daemon: images, their descriptions, and text."""

import html
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

import pytest

from tests.e2e.command import HOST, PATIENCE_S, Served, Tsd

pytestmark = pytest.mark.slow

START_S = 1356998400
GRAPH_PATH = f"/q?start={START_S}&end={START_S + 600}&m=sum:graph.cpu"


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("graphs") / "state"
    lines = [f"put graph.cpu {START_S + 60 * i} {i}.5 host=web0{i % 2}\n" for i in range(30)]
    with Tsd(folder, {"tsd.core.auto_create_metrics": "true"}).serve() as served:
        assert served.send_lines("".join(lines).encode()) == b"synced 30\n"
        yield served


def get(served: Served, path: str) -> Answer:
    connection = http.client.HTTPConnection(HOST, served.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
    finally:
        connection.close()


def test_graph_is_cached_and_described(served: Served) -> None:
    answer = get(served, f"{GRAPH_PATH}&json&wxh=640x480")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    first = json.loads(answer.body)
    assert (first["plotted"], first["points"], first["etags"]) == (11, 30, [["host"]])
    assert "cachehit" not in first
    shown = get(served, f"{GRAPH_PATH}&png&wxh=640x480")
    assert (shown.status, shown.headers["content-type"]) == (200, "image/png")
    assert shown.headers["cache-control"] == "max-age=86400"
    assert shown.body.startswith(b"\x89PNG")
    assert json.loads(get(served, f"{GRAPH_PATH}&wxh=640x480&json").body)["cachehit"] == "memory"
    assert "cachehit" not in json.loads(get(served, f"{GRAPH_PATH}&json&wxh=640x480&nocache").body)


def test_graph_as_svg(served: Served) -> None:
    shown = get(served, f"{GRAPH_PATH}&svg&smooth=csplines&o=axis+x1y2")
    assert (shown.status, shown.headers["content-type"]) == (200, "image/svg+xml")
    assert b"graph.cpu" in shown.body


def test_ascii_output_not_cut_to_range(served: Served) -> None:
    text = get(served, f"{GRAPH_PATH}&ascii")
    assert (text.status, text.headers["content-type"]) == (200, "text/plain")
    assert text.body.splitlines()[:2] == [b"graph.cpu 1356998400 0.5", b"graph.cpu 1356998460 3.0"]
    assert len(text.body.splitlines()) == 30


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/q?json", 400, "Missing parameter <code>start</code>"),
        (f"{GRAPH_PATH}&json&wxh=1x1", 400, "Invalid wxh=1x1"),
        (f"{GRAPH_PATH}&json&o=set+terminal", 400, "Invalid option o=set terminal"),
        (f"{GRAPH_PATH}.nope&json", 500, "No such name for 'metrics': 'graph.cpu.nope'"),
        (f"{GRAPH_PATH}&json&tz=No/Where", 400, "Invalid timezone name: No/Where"),
    ],
)
def test_graph_errors_as_json(served: Served, path: str, status: int, message: str) -> None:
    found = get(served, path)
    assert found.status == status
    assert message in json.loads(found.body)["err"]


def test_graph_without_query_redirects_to_home_page(served: Served) -> None:
    found = get(served, GRAPH_PATH)
    wanted = f"/#start={START_S}&end={START_S + 600}&m=sum:graph.cpu"
    assert found.headers["location"] == wanted
    redirect = re.search(rb'url=([^"]*)"', found.body)
    assert redirect is not None
    link = html.unescape(redirect[1].decode())
    for proxied in ("", "/tools/tsd"):  # a path that a proxy serves the daemon below, and removes
        assert urljoin(f"https://example.com{proxied}{GRAPH_PATH}", link) == f"https://example.com{proxied}{wanted}"
