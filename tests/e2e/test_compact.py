"""`tsd compact` run by an operator or a timer: with and without a daemon, interrupted, on both stores."""

import json
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_hbase, until
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tsd.cli.torture.fork_server import Forked
from tsd.codec.dates import parse_date
from tsd.daemon.settings import now_ms
from tsd.store import Put

HOUR = 1356998400
ONE_BY_ONE = {"tsd.storage.join_points": "false", "tsd.storage.enable_compaction": "false"}


def lines(metric: str, hours: int = 3, points: int = 20, series: int = 2) -> list[str]:
    """Return put lines of some series, without the word `put`."""
    return [
        f"{metric} {HOUR + hour * 3600 + point * 10} {point}.5 host=web0{host}"
        for host in range(1, series + 1)
        for hour in range(hours)
        for point in range(points)
    ]


def load(tsd: Tsd, *texts: list[str]) -> None:
    """Import lines."""
    done = tsd.run("import", "--auto-metric", "-", stdin="".join(f"{t}\n" for text in texts for t in text).encode())
    assert done.status == 0, done


def summary(out: str) -> dict[str, int]:
    """Parse the numbers of a summary by name."""
    found = {}
    for line in out.splitlines():
        name, _, rest = line.partition(": ")
        for part in rest.split(", "):
            if match := re.fullmatch(r"(\d+)\s*(.*)|(\w+) (\d+)", part):
                found[f"{name} {match[2] or match[3] or ''}".strip()] = int(match[1] or match[4])
    return found


@pytest.fixture
def tsd(tmp_path: Path) -> Tsd:
    """Commands on the test's own state folder that write each point to its own cell."""
    return Tsd(tmp_path / "state", ONE_BY_ONE)


@pytest.mark.slow
def test_compact_joins_rows_and_keeps_points(tsd: Tsd) -> None:
    load(tsd, lines("a.load"), lines("b.load"))
    before = tsd.lines("a.load", "b.load")
    dry = tsd.run("compact", "--dry-run")
    assert (dry.status, dry.err) == (0, "")
    assert summary(dry.out)["rows"] == summary(dry.out)["rows compacted"] == 12
    some = tsd.run("compact", "a.load", "--since", f"{HOUR + 3600}", "--until", f"{HOUR + 3 * 3600 - 1}")
    assert (some.status, summary(some.out)["rows"]) == (0, 2)  # the last hour of the range is incomplete
    done = tsd.run("compact")
    assert (done.status, done.err) == (0, "")
    counts = summary(done.out)
    assert (counts["rows"], counts["rows compacted"], counts["cells before"], counts["cells after"]) == (
        12,
        10,
        202,
        12,
    )
    assert counts["bytes before"] == summary(dry.out)["bytes before"] - 2 * (
        20 * (13 + 2 + 8 + 2 + 4) - 23 - 20 * 6 - 1
    )
    assert tsd.lines("a.load", "b.load") == before
    again = summary(tsd.run("compact").out)
    assert (again["rows compacted"], again["cells before"], again["cells after"]) == (0, 12, 12)
    assert not (tsd.folder / "compact.json").exists()


@pytest.mark.slow
def test_compact_runs_in_the_daemon(tsd: Tsd) -> None:
    with tsd.serve() as daemon:
        daemon.send_lines("".join(f"put {line}\n" for line in lines("a.load")).encode())
        daemon.flush()
        before = tsd.lines("a.load")
        done = tsd.run("compact")
        assert (done.status, summary(done.out)["rows compacted"]) == (0, 6), done
        assert tsd.lines("a.load") == before


@pytest.mark.slow
def test_compact_skips_current_hours(tsd: Tsd) -> None:
    now = now_ms() // 1000
    load(tsd, [f"a.load {now + n} 1 host=a" for n in range(3)], lines("a.load", hours=1))
    done = tsd.run("compact", "--until", f"{now + 9999}")
    assert (done.status, summary(done.out)["rows"]) == (0, 2), done


def test_compact_reports_unreadable_rows(tsd: Tsd) -> None:
    load(tsd, lines("a.load", hours=1))
    key = bytes.fromhex("000001") + HOUR.to_bytes(4, "big") + bytes.fromhex("000001000001")
    tsd.put_directly("tsdb", Put(key, b"t:\0\2", b"abc"))
    done = tsd.run("compact")
    assert done.status == 1
    assert f"tsd: row left unchanged: row {key.hex()}" in done.err
    assert summary(done.out)["rows skipped that cannot be decoded"] == 1
    assert summary(done.out)["rows compacted"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--since", "yesterday"], 2, "got time 'yesterday'"),
        (["--since", "1h-ago", "--until", "2h-ago"], 2, "is before"),
        (["--rate", "0"], 2, "Invalid value for '--rate'"),
        (["no.such.metric"], 1, "'no.such.metric'"),
    ],
)
def test_compact_refuses_bad_arguments(tsd: Tsd, words: list[str], status: int, message: str) -> None:
    load(tsd, lines("a.load", hours=1))
    done = tsd.run("compact", *words)
    assert (done.status, message in done.err) == (status, True), done


def test_compact_creates_no_store(tsd: Tsd) -> None:
    done = tsd.run("compact")
    assert (done.status, tsd.folder.exists()) == (1, False)
    assert "no embedded store" in done.err


@pytest.mark.difference("compaction-queue")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_compact_resumes(tsd: Tsd, number: signal.Signals) -> None:
    load(tsd, lines("a.load", hours=200, points=2))
    checkpoint = tsd.folder / "compact.json"
    with tsd.popen("compact", "--rate", "16") as process:
        until(checkpoint.exists, "a checkpoint")
        busy = tsd.run("compact", "--checkpoint", checkpoint)
        assert busy.status == 4, busy
        process.send_signal(number)
        process.communicate()
    assert process.returncode == -number
    until_s = json.loads(checkpoint.read_text())["state"]["range"][1]
    other = tsd.run("compact", "--dry-run")
    assert 0 < summary(other.out)["rows compacted"] < 400  # a dry run starts from the beginning
    done = tsd.run("compact")
    assert done.status == 0
    shown = re.fullmatch(r"tsd: resuming after \d+ rows, .* up to (\S+) UTC\n", done.err)
    assert shown is not None
    assert parse_date(shown[1], 0) == until_s * 1000  # the end of the run that was interrupted
    counts = summary(done.out)
    assert counts["rows"] >= 400  # the few rows after the last checkpoint are processed again
    assert counts["cells after"] == counts["rows"]
    assert summary(tsd.run("compact").out)["rows compacted"] == 0
    assert sorted(tsd.lines("a.load")) == sorted(lines("a.load", hours=200, points=2))


@pytest.mark.slow
def test_compact_survives_daemon_restart(tsd: Tsd) -> None:
    load(tsd, lines("a.load", hours=40, points=2))
    with ExitStack() as stack:
        with tsd.serve():
            process = stack.enter_context(tsd.popen("compact", "--rate", "16"))
            until((tsd.folder / "compact.json").exists, "a checkpoint")
        await_trouble(process)
        with tsd.serve():
            out, err = process.communicate()
    assert process.returncode == 0, err
    counts = summary(out.decode())
    assert counts["cells after"] == counts["rows"] == 80
    assert sorted(tsd.lines("a.load")) == sorted(lines("a.load", hours=40, points=2))


def await_trouble(process: Forked) -> None:
    """Return once the command reports that its store does not answer."""
    output = process.stderr.readline().decode()
    assert output.startswith("tsd: retrying: "), output


def test_compact_survives_hbase_outage(tmp_path: Path, hbase: RunningHbase) -> None:
    tables = hbase.new_tables()
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, ONE_BY_ONE))
    load(tsd, lines("a.load", hours=40, points=2))
    with tsd.popen("compact", "--rate", "16") as process:
        until((tsd.folder / "compact.json").exists, "a checkpoint")
        hbase.thrift_kill()
        await_trouble(process)
        hbase.thrift_start()
        out, err = process.communicate()
    assert process.returncode == 0, err
    counts = summary(out.decode())
    assert counts["cells after"] == counts["rows"] == 80
    assert {len(cells) for cells in hbase.tables.rows(tables.data).values()} == {1}
    assert sorted(tsd.lines("a.load")) == sorted(lines("a.load", hours=40, points=2))


def test_compact_fails_without_tables_or_hbase(tmp_path: Path, hbase: RunningHbase) -> None:
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, hbase.unused_tables()))
    done = tsd.run("compact")
    assert (done.status, done.out) == (1, ""), done
    assert "there is no table t" in done.err
    done = tsd.but({"tsd.storage.hbase.thrift": "127.0.0.1:1"}).run("compact")
    assert (done.status, done.out, "127.0.0.1:1" in done.err) == (3, "", True), done
    assert not (tsd.folder / "compact.json").exists()


@pytest.mark.parametrize("salt", [{}, {"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "4"}])
def test_opentsdb_reads_compacted_rows(
    tmp_path: Path, hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], salt: dict[str, str]
) -> None:
    tables = hbase.new_tables()
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables, ONE_BY_ONE | salt))
    load(tsd, lines("a.load", series=9))
    assert {len(cells) for cells in hbase.tables.rows(tables.data).values()} == {20}
    assert len({key[0] for key in hbase.tables.rows(tables.data)}) == (4 if salt else 1)
    peer = opentsdb(tables, **{"tsd.storage.enable_compaction": "false"}, **salt)
    path = f"/api/query?start={HOUR}&end={HOUR + 4 * 3600}&m=none:a.load{{host=*}}"
    status, before = peer.http("GET", path)
    assert status == 200
    assert sorted(len(series["dps"]) for series in before) == [60] * 9
    some = tsd.run("compact", "a.load", "--until", f"{HOUR + 3600}")
    assert (some.status, summary(some.out)["rows compacted"]) == (0, 9), some
    done = tsd.run("compact")
    assert (done.status, summary(done.out)["rows compacted"]) == (0, 18), done
    assert {len(cells) for cells in hbase.tables.rows(tables.data).values()} == {1}
    status, after = peer.http("GET", path)
    assert (status, by_tags(after)) == (200, by_tags(before))


def by_tags(answer: list[dict[str, object]]) -> list[dict[str, object]]:
    """Sort series by their tags."""
    return sorted(answer, key=lambda series: str(series["tags"]))
