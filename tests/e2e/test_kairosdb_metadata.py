"""KairosDB's metadata of services on its tables: the recorded requests, many keys, bad requests, and a restart."""

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.e2e.command import Served, Tsd, on_cassandra
from tests.kairosdb_series import recorded
from tests.peers.cassandra import RunningCassandra

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
LAYOUT = {"tsd.storage.layout": "kairosdb", "tsd.access.anonymous": "read,write,admin"}
ROOT = "/api/v1/metadata"
CASES = [case for case in recorded()["wire"] if case["name"].startswith("metadata: ")]
ONCE = "metadata: service keys"  # KairosDB lists a service key once for each of its keys


def ask(served: Served, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Return status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request(method, path, body or None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def tsd(cassandra: RunningCassandra, tmp_path_factory: pytest.TempPathFactory) -> Tsd:
    tsd = Tsd(tmp_path_factory.mktemp("metadata") / "state", on_cassandra(cassandra, LAYOUT))
    assert tsd.run("create-tables").status == 0
    return tsd


@pytest.fixture
def served(tsd: Tsd) -> Iterator[Served]:
    with tsd.serve() as served:
        yield served


def test_recorded_requests_are_answered(served: Served) -> None:
    assert len(CASES) == 19
    for case in CASES:
        request = case["request"]
        body = request.get("body", "").encode()
        found = ask(served, request["method"], request["path"], body)
        answer = '{"results":["key"]}' if case["name"] == ONCE else case["answer"]
        assert found == (case["status"], answer.encode()), case["name"]


def test_names_keep_case_and_slashes(served: Served) -> None:
    for name in ("Svc/Key/A", "svc/key/A", "svc/key/a%2Fb", "svc/KEY/a"):
        assert ask(served, "POST", f"{ROOT}/{name}", name.encode())[0] == 204
    for name in ("Svc/Key/A", "svc/key/A", "svc/key/a%2Fb", "svc/KEY/a"):
        assert ask(served, "GET", f"{ROOT}/{name}") == (200, name.encode())
    assert json.loads(ask(served, "GET", f"{ROOT}/svc/key")[1]) == {"results": ["A", "a/b"]}
    assert json.loads(ask(served, "GET", f"{ROOT}/svc")[1]) == {"results": ["KEY", "key"]}


def test_later_text_replaces_the_earlier(served: Served) -> None:
    for text in (b"zz", b"a", b"m"):
        assert ask(served, "POST", f"{ROOT}/later/key/a", text)[0] == 204
        assert ask(served, "GET", f"{ROOT}/later/key/a") == (200, text)
    assert ask(served, "DELETE", f"{ROOT}/later/key/a")[0] == 204
    assert ask(served, "POST", f"{ROOT}/later/key/a", b"new")[0] == 204
    assert ask(served, "GET", f"{ROOT}/later/key/a") == (200, b"new")


def test_bad_requests_store_nothing(served: Served) -> None:
    bad = {
        f"{ROOT}/bad/key/a": (b"\xff\xfe", 400),
        f"{ROOT}/bad/key": (b"text", 404),
        f"{ROOT}/bad//a": (b"text", 404),
        f"{ROOT}/bad/key/%FF": (b"text", 400),
        f"{ROOT}/bad/key/b": (b"x" * ((1 << 20) + 1), 413),
        f"{ROOT}/bad/key/c/d": (b"text", 404),
    }
    for path, (body, status) in bad.items():
        assert ask(served, "POST", path, body)[0] == status, path
    assert json.loads(ask(served, "GET", f"{ROOT}/bad")[1]) == {"results": []}


def test_texts_are_kept_and_a_read_only_daemon_shows_them(tsd: Tsd) -> None:
    with tsd.serve() as served:
        assert ask(served, "POST", f"{ROOT}/kept/key/a", b"text")[0] == 204
        served.kill()
    with tsd.but({"tsd.mode": "ro"}).serve() as served:
        assert ask(served, "GET", f"{ROOT}/kept/key/a") == (200, b"text")
        assert ask(served, "POST", f"{ROOT}/kept/key/a", b"other")[0] == 403
        assert ask(served, "DELETE", f"{ROOT}/kept/key/a")[0] == 403
        assert ask(served, "GET", f"{ROOT}/kept/key/a") == (200, b"text")
