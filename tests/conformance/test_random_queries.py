"""Random requests: tsd and a real OpenTSDB on the same tables give the same answers."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.random_queries import QueryCase, lines, notes, odd_query_case, query_case, warming
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb, Opentsdbs
from tests.seeds import FACTOR

PER_TEST = 60
TESTS = 2 * FACTOR  # per kind of table
ODD_TESTS = 2 * FACTOR
SALTED = {"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "4"}


class Pair:
    """A tsd and an OpenTSDB on the same tables."""

    def __init__(self, port: int, peer: Opentsdb) -> None:
        self._port = port
        self._peer = peer
        self.tsuids: dict[str, list[str]] = {}  # by metric

    def warm_up(self) -> None:
        """Make OpenTSDB look up every name, read the TSUIDs, and write annotations."""
        for case in warming():
            mine, theirs = self.both(case)
            assert mine[0] == theirs[0] == 200, (case, mine, theirs)
            groups = [dict(group) for group in theirs[1]]
            self.tsuids[groups[0]["metric"]] = [group["tsuids"][0] for group in groups]
        for note in notes(self.tsuids):
            assert _fetch(self._peer.port, QueryCase("POST", "/api/annotation", note))[0] == 200

    def both(self, case: QueryCase) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """Return status and answer of tsd and of OpenTSDB."""
        return _fetch(self._port, case), _fetch(self._peer.port, case)


@pytest.fixture(scope="module", params=[{}, SALTED], ids=["plain", "salted"])
def pair(
    request: pytest.FixtureRequest, hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("many")
    tables = hbase.new_tables()
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    try:
        peer = peers.start(tables, **request.param)
        yield from _served(Tsd(folder / "state", {**on_hbase(hbase, tables), **request.param}), peer)
    finally:
        peers.close()


def _served(tsd: Tsd, peer: Opentsdb) -> Iterator[Pair]:
    with tsd.serve() as serving:
        assert serving.send_lines(b"".join(lines(1))).startswith(b"synced ")
        serving.flush()
        pair = Pair(serving.port, peer)
        pair.warm_up()
        yield pair


@pytest.mark.opentsdb
@pytest.mark.hbase
@pytest.mark.parametrize("number", range(TESTS))
def test_random_queries_answered_as_by_opentsdb(pair: Pair, number: int) -> None:
    assert _answered(pair, {seed: query_case(seed) for seed in _seeds(number)}) > PER_TEST // 2


@pytest.mark.opentsdb
@pytest.mark.hbase
@pytest.mark.parametrize("number", range(ODD_TESTS))
def test_odd_queries_answered_as_by_opentsdb(pair: Pair, number: int) -> None:
    assert _answered(pair, {seed: odd_query_case(seed, pair.tsuids) for seed in _seeds(number)}) > PER_TEST // 4


def _seeds(number: int) -> range:
    return range(number * PER_TEST, (number + 1) * PER_TEST)


def _answered(pair: Pair, cases: dict[int, QueryCase]) -> int:
    """Send requests to both and assert equal answers. Return how many found something."""
    answered = 0
    for seed, one in cases.items():
        mine, theirs = pair.both(one)
        assert mine == theirs, f"seed {seed}: {one}\n{_difference(mine[1], theirs[1])}"
        answered += theirs[0] == 200 and bool(theirs[1])
    return answered


def _fetch(port: int, case: QueryCase) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = None if case.body is None else json.dumps(case.body)
        connection.request(case.method, case.path, body)
        response = connection.getresponse()
        return response.status, _plain(json.loads(response.read(), object_pairs_hook=_pairs))
    finally:
        connection.close()


class Members(list[tuple[str, Any]]):
    """Members of an object in order: OpenTSDB may repeat a key."""


def _pairs(members: list[tuple[str, Any]]) -> Members:
    return Members(members)


def _plain(answer: Any) -> Any:
    """Normalise an answer: keys sorted, tag names as sets, numbers with their types, no stack trace."""
    if isinstance(answer, Members):
        shown = [(key, _plain(value)) for key, value in answer if key not in ("trace", "stats")]
        shown = [(key, sorted(value)) if key == "aggregateTags" else (key, value) for key, value in shown]
        return sorted(shown, key=lambda member: member[0])
    if isinstance(answer, list):
        return [_plain(value) for value in answer]
    return (type(answer).__name__, answer) if isinstance(answer, int | float) else answer


def _difference(mine: Any, theirs: Any, path: str = "") -> str:
    """Return where two answers first differ."""
    if isinstance(mine, list) and isinstance(theirs, list):
        for at, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            if one != other:
                return _difference(one, other, f"{path}[{at}]")
        return f"{path}: {len(mine)} and {len(theirs)} members: {str(mine)[:300]} / {str(theirs)[:300]}"
    if isinstance(mine, tuple) and isinstance(theirs, tuple) and mine[:1] == theirs[:1]:
        return _difference(list(mine[1:]), list(theirs[1:]), f"{path}.{mine[0]}")
    return f"{path}: got {str(mine)[:500]}, OpenTSDB has {str(theirs)[:500]}"
