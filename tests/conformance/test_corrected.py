"""docs/corrected.md: every example of the page with and without correction, by request and by setting; and the answers
of a real OpenTSDB."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from scripts.differences import collect
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdbs
from tsd.daemon.settings import now_ms

PAGE = (Path(__file__).parents[2] / "docs" / "corrected.md").read_text()
EXP = "/api/query/exp"


class Example(NamedTuple):
    """A request of the page and its answers."""

    title: str
    method: str
    target: str
    body: dict[str, Any] | None
    theirs: str
    corrected: str

    def but(self, value: bool) -> "Example":
        """Return the same request with an explicit choice of correction."""
        if self.body is not None:
            return self._replace(body={**self.body, "corrected": value})
        return self._replace(target=f"{self.target}&corrected={str(value).lower()}")


def read_blocks() -> Iterator[tuple[str, list[str]]]:
    """Yield the page's indented blocks with their headings."""
    title = ""
    for paragraph in PAGE.split("\n\n"):
        if paragraph.startswith("#"):
            title = paragraph.strip("# ")
        elif paragraph.startswith("    "):
            yield title, [line.removeprefix("    ") for line in paragraph.splitlines()]


def read_request(line: str, title: str = "", theirs: str = "", corrected: str = "") -> Example:
    """`METHOD TARGET [BODY]`."""
    method, target, body = (*line.split(" ", 2), "")[:3]
    return Example(title, method, target, json.loads(body) if body else None, theirs, corrected)


def read_examples() -> Iterator[Example]:
    """Yield all requests of the page that have an answer."""
    for title, (request, *answers) in read_blocks():
        if answers[0].startswith("OpenTSDB "):
            theirs, corrected = (answer.split(None, 1)[1] for answer in answers)
            yield read_request(request, title, theirs, corrected)


[SETUP] = [lines for _, lines in read_blocks() if lines[0].startswith("put ")]
NOTES = [read_request(line) for line in SETUP if line.startswith("POST ")]
EXAMPLES = list(read_examples())
OF_ROLLUPS = [one for one in EXAMPLES if "ROLLUP" in one.title]  # test_rollup_sources queries a real OpenTSDB
PLAIN = [one for one in EXAMPLES if one not in OF_ROLLUPS]
ROLLUPS = json.dumps(
    {
        "aggregationIds": {"sum": 0, "count": 1},
        "intervals": [
            {"interval": "1m", "table": "tsdb", "preAggregationTable": "p", "rowSpan": "1h", "defaultInterval": True},
            {"interval": "1h", "table": "hours", "preAggregationTable": "p", "rowSpan": "1d"},
        ],
    }
)


@cache
def now() -> str:
    """Return the second in which the first of these tests began: tests may be collected hours before they run."""
    return str(now_ms() // 1000)


def fetch(port: int, one_example: Example) -> str:
    """Return the answer in the page's format."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = None if one_example.body is None else json.dumps(one_example.body)
        connection.request(
            one_example.method, quote(one_example.target, safe="/?=&:,*()'"), body, {"Connection": "close"}
        )
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        return f"{response.status} {json.loads(text)['error']['message']}"
    if one_example.target == EXP:
        text = json.dumps(json.loads(text)["outputs"][0]["dps"], separators=(",", ":"))
    return f"{response.status} {text}".replace(now(), "NOW")


@pytest.fixture(scope="module", params=["false", "true"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, bool]]:
    """A daemon's port, and whether its setting corrects answers."""
    with filled(tmp_path_factory.mktemp("corrected"), {"tsd.query.corrected": request.param}) as port:
        yield port, request.param == "true"


@contextmanager
def filled(folder: Path, settings: Mapping[str, str]) -> Iterator[int]:
    """Run a daemon with the page's points and annotations. Yield its port."""
    with Tsd(folder / "state", settings).serve() as serving:
        points = [f"{line}\n" for line in SETUP if line.startswith("put ")]
        assert serving.send_lines("".join(points).replace("NOW", now()).encode()) == b"synced %d\n" % len(points)
        for note in NOTES:
            assert fetch(serving.port, note).startswith("200 ")
        yield serving.port


@pytest.mark.parametrize("example", PLAIN, ids=lambda one: one.title[:30])
def test_example_answered_as_documented(served: tuple[int, bool], example: Example) -> None:
    check(*served, example)


@pytest.mark.parametrize("corrected", ["false", "true"])
def test_rollup_example_answered_as_documented(tmp_path: Path, corrected: str) -> None:
    settings = {"tsd.rollups.enable": "true", "tsd.rollups.config": ROLLUPS, "tsd.query.corrected": corrected}
    with filled(tmp_path, settings) as port:
        for example in OF_ROLLUPS:
            check(port, corrected == "true", example)


def check(port: int, is_corrected: bool, example: Example) -> None:
    """Assert that the answer is the documented one, whatever the setting."""
    assert fetch(port, example) == (example.corrected if is_corrected else example.theirs)
    assert fetch(port, example.but(True)) == example.corrected
    assert fetch(port, example.but(False)) == example.theirs


@pytest.mark.slow
def test_each_corrected_difference_has_an_example() -> None:
    corrected = {one.theirs: one.ours for one in collect() if one.topic == "corrected"}
    assert corrected.keys() == {example.title for example in EXAMPLES}
    assert all(f"### {title}\n\nCorrected: {ours}.\n" in PAGE for title, ours in corrected.items())
    assert all(example.theirs != example.corrected for example in EXAMPLES)


@pytest.mark.opentsdb
@pytest.mark.hbase
def test_example_answered_by_opentsdb_as_documented(
    hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables = hbase.new_tables()
    with filled(tmp_path_factory.mktemp("corrected-lines"), on_hbase(hbase, tables)):
        pass
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    try:
        port = peers.start(tables, **{"tsd.http.show_stack_trace": "false"}).port
        # OpenTSDB may answer [] to two filters on names that it has not looked up yet.
        fetch(port, read_request("GET /api/query?start=1600002000&end=1600002001&m=none:names"))
        results = [(example, fetch(port, example)) for example in PLAIN]
    finally:
        peers.close()
    others = [f"{one.method} {one.target}\n{answer}" for one, answer in results if parsed(answer) != parsed(one.theirs)]
    assert not others, "\n".join(others)


def parsed(answer: str) -> object:
    """Parse an answer and ignore the order of tags, which has no meaning."""
    status, _, text = answer.partition(" ")
    return text if status != "200" else json.loads(text, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> object:
    return pairs if all(name.isdecimal() or name == "NOW" for name, _ in pairs) else dict(pairs)
