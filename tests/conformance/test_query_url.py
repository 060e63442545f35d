"""`tsd query --url`: the same answers from a real OpenTSDB and from tsd."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Done, Tsd
from tests.peers.opentsdb import Opentsdb

LINES = b"".join(
    b"put url.cpu %d %s host=%s dc=lga\n" % (1356998400 + 60 * minute, value, host)
    for host, values in {b"web01": (b"1", b"2.5"), b"web02": (b"10", b"70")}.items()
    for minute, value in enumerate(values)
)
TIMES = ("1356998400", "2013/01/01-01:00:00")
OWN = "sum:1m-avg:rate:url.cpu{host=*}"
WORDS = ("sum", "rate", "downsample", "60000", "avg", "url.cpu", "host=*")
FORMS = ("lines", "table", "csv", "json")


def run(folder: Path, url: str, *words: str) -> Done:
    return Tsd(folder / "none").run("query", "--url", url, *words)


@pytest.fixture(scope="module")
def urls(
    opentsdb_shared: Callable[..., Opentsdb], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """OpenTSDB's URL and that of a tsd, with the same points."""
    peer = opentsdb_shared()
    assert peer.send(LINES) == b""
    with Tsd(tmp_path_factory.mktemp("url") / "state").serve() as daemon:
        daemon.send_lines(LINES)
        yield f"http://127.0.0.1:{peer.port}", f"http://127.0.0.1:{daemon.port}"


def test_opentsdb_and_tsd_print_the_same(urls: tuple[str, str], tmp_path: Path) -> None:
    for words in ((OWN,), WORDS, ("none:url.cpu", "max:url.cpu{dc=lga}")):
        for form in FORMS:
            theirs, ours = (run(tmp_path, url, "--format", form, *TIMES, *words) for url in urls)
            assert theirs.status == 0, theirs
            assert theirs.out
            if form == "json":
                theirs, ours = (sorted(json.loads(done.out), key=str) for done in (theirs, ours))
            else:
                theirs, ours = (done._replace(out=sorted(done.out.splitlines())) for done in (theirs, ours))
            assert theirs == ours


def test_csv_has_a_column_for_each_tag(urls: tuple[str, str], tmp_path: Path) -> None:
    for url in urls:
        done = run(tmp_path, url, "--format", "csv", *TIMES, "sum:url.cpu{host=web01}")
        assert list(csv.DictReader(io.StringIO(done.out))) == [
            {"time": "1356998400000", "metric": "url.cpu", "host": "web01", "dc": "lga", "value": "1.0"},
            {"time": "1356998460000", "metric": "url.cpu", "host": "web01", "dc": "lga", "value": "2.5"},
        ]


def test_errors_of_both_are_shown(urls: tuple[str, str], tmp_path: Path) -> None:
    for url in urls:
        done = run(tmp_path, url, *TIMES, "sum:url.nope")
        assert done.status == 1
        assert "url.nope" in done.err


def test_pictures_of_both_are_equal(urls: tuple[str, str], tmp_path: Path) -> None:
    options = ("--size", "300x200", "--title", "both", "--ylog", "--right", "2")
    queries = ("sum:url.cpu{host=web01}", "sum:url.cpu{host=web02}")
    drawn = []
    for number, url in enumerate(urls):
        file = tmp_path / f"{number}.png"
        done = run(tmp_path, url, "--graph", str(file), *options, *TIMES, *queries)
        assert done == Done(0, "", "")
        drawn.append(file.read_bytes())
    assert drawn[0] == drawn[1]
