"""`tsd query` on both engines, and with a daemon that owns the store and holds unwritten points."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.command import Done, Tsd

pytestmark = pytest.mark.slow

START_S = 1356998400
LINES = [
    "cmd.cpu 1356998400 1 host=web01 dc=lga",
    "cmd.cpu 1356998460 2.5 host=web01 dc=lga",
    "cmd.cpu 1356998400 10 host=web02 dc=sjc",
    "cmd.cpu 1356998460 1e300 host=web02 dc=sjc",
    "cmd.mem 1356998430 -7 host=web01",
]


@pytest.fixture
def filled(engine: Tsd) -> Tsd:
    done = engine.run("import", "--auto-metric", "-", stdin="".join(f"{line}\n" for line in LINES).encode())
    assert done.status == 0, done
    return engine


def query(tsd: Tsd, *words: str | Path) -> list[str]:
    """Return the printed lines."""
    done = tsd.run("query", *words)
    assert (done.status, done.err) == (0, ""), done
    return done.out.splitlines()


def test_query_prints_points_as_opentsdb(filled: Tsd) -> None:
    assert query(filled, "1356998400", "1356998500", "sum", "cmd.cpu", "host=*", "max", "cmd.mem") == [
        "cmd.cpu 1356998400000 1.000000 {host=web01, dc=lga}",  # the series has a double
        "cmd.cpu 1356998460000 2.500000 {host=web01, dc=lga}",
        "cmd.cpu 1356998400000 10.000000 {host=web02, dc=sjc}",
        f"cmd.cpu 1356998460000 1{'0' * 300}.000000 {{host=web02, dc=sjc}}",
        "cmd.mem 1356998430000 -7 {host=web01}",
    ]


def test_query_with_rate_and_downsampling(filled: Tsd) -> None:
    words = ["2013/01/01-00:00:00", "sum", "rate", "downsample", "60000", "avg", "cmd.cpu", "host=web01"]
    assert query(filled, *words) == ["cmd.cpu 1356998460000 0.025000 {host=web01, dc=lga}"]


def test_query_json_equals_the_api(filled: Tsd) -> None:
    [answer] = query(filled, "--json", "1356998400", "1356998430", "sum", "cmd.cpu", "host=web01|web02")
    assert [group["dps"] for group in json.loads(answer)] == [{"1356998400": 1}, {"1356998400": 10}]


def test_log_of_a_query_is_no_part_of_its_answer(tmp_path: Path) -> None:
    """Regression: an event that was logged, here of an incomplete answer, came before the JSON on standard output."""
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("import", "--auto-metric", "-", stdin=LINES[-1].encode()).status == 0
    assert tsd.run("uid", "delete", "tagv", "web01").status == 0
    done = tsd.run("query", "--json", "1356998400", "1356998500", "sum", "cmd.mem")
    [group] = json.loads(done.out)
    assert (done.status, group["dps"]) == (0, {"1356998430": -7})
    assert "query.answer_incomplete" in done.err


@pytest.mark.difference(
    "query-graph",
    topic="commands",
    theirs="`query --graph` needs Gnuplot options for each query and writes Gnuplot's files",
    ours="`--graph FILE` writes a PNG or SVG",
)
@pytest.mark.parametrize(("name", "begin"), [("graph.png", b"\x89PNG"), ("graph.svg", b"<?xml")])
def test_query_draws_a_graph(filled: Tsd, tmp_path: Path, name: str, begin: bytes) -> None:
    assert query(filled, "--graph", tmp_path / name, "1356998400", "1356998500", "sum", "cmd.mem") == []
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["1356998400"], 2, "Not enough arguments."),
        (["1356998400", "nope", "cmd.cpu"], 1, "No such aggregator: nope"),
        (["1356998400", "sum", "cmd.nope"], 1, "No such name for 'metrics': 'cmd.nope'"),
        (["x", "sum", "cmd.cpu"], 1, "Invalid time: x. Invalid character 'x' in x"),
        (["--graph", "x.gif", "1356998400", "sum", "cmd.cpu"], 2, "wanted a name that ends in .png or .svg"),
    ],
)
def test_query_reports_bad_arguments(tmp_path: Path, words: Sequence[str], status: int, message: str) -> None:
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("import", "--auto-metric", "-", stdin=f"{LINES[0]}\n".encode()).status == 0
    done: Done = tsd.run("query", *words)
    assert done.status == status
    assert message in done.err
    assert done.out == ""
