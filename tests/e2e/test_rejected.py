"""`tsd rejected` and `tsd top` as an operator runs them: refused lines are found, corrected and sent again."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.e2e.command import PATIENCE_S, Done, Served, Tsd

T = 1_500_000_000
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tsd(tmp_path_factory: pytest.TempPathFactory) -> Tsd:
    settings = {"tsd.core.auto_create_metrics": "false"}
    return Tsd(tmp_path_factory.mktemp("rejected") / "state", settings)


@pytest.fixture(scope="module")
def served(tsd: Tsd) -> Iterator[Served]:
    with tsd.serve() as served:
        send_lines(
            served,
            b"put sys.a %d 1 host=x\nput sys.a %d 2 host=x\nput sys.b %d 3 host=x\nput bad\nauth basic me secret\n"
            % (T, T + 1, T),
        )
        post(served, b'[{"metric":"sys.a","timestamp":%d,"value":4,"tags":{"host":"x"}},{"metric":"x"}]' % (T + 2))
        yield served


def send_lines(served: Served, lines: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(lines + b"sync\nexit\n")
        return read(connection)


def post(served: Served, body: bytes, path: str = "/api/put") -> bytes:
    names = f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"
    head = "".join(f"{line}\r\n" for line in (*names, "")).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head + body)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def listed(tsd: Tsd, *words: str) -> list[dict[str, object]]:
    done = tsd.run("rejected", "--json", *words)
    assert (done.status, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.difference(
    "rejected-lines",
    topic="limits",
    theirs="A refused line is lost unless its sender kept it",
    ours="It is kept for a while, and `tsd rejected --replay` sends it again",
)
def test_rejected_lines_corrected_resent_and_marked(tsd: Tsd, served: Served) -> None:
    # Refused lines with their senders; no secret appears anywhere.
    found = listed(tsd)
    assert [one["line"] for one in found] == [
        f"put sys.a {T} 1 host=x",
        f"put sys.a {T + 1} 2 host=x",
        f"put sys.b {T} 3 host=x",
        "put bad",
        'api/put {"metric":"x","timestamp":0}',
        f"put sys.a {T + 2} 4 host=x",
    ]
    assert all(str(one["peer"]).startswith("127.0.0.1:") for one in found)
    assert b"secret" not in b"".join(path.read_bytes() for path in (tsd.folder / "rejected").iterdir())
    assert len(listed(tsd, "--metric", "sys.*", "--reason", "unknown_metrics")) == 4
    unknown = tsd.run("rejected", "--reason", "unknown_metric")
    assert (unknown.status, "unknown_metrics" in unknown.err) == (2, True)
    assert len(listed(tsd, "--match", "arguments")) == 1
    assert listed(tsd, "--until", "1h-ago") == []
    assert [one["line"] for one in listed(tsd, "--last", "1")] == [f"put sys.a {T + 2} 4 host=x"]
    summary = json.loads(tsd.run("rejected", "--summary", "--json").out)
    assert summary["groups"][0]["lines"] == 3
    assert sum(group["lines"] for group in summary["groups"]) == 6
    text = tsd.run("rejected", "--summary").out
    assert "6 lines" in text.splitlines()[-1]

    # Nothing is corrected yet.
    done = tsd.run("rejected", "--replay")
    assert (done.status, done.out.splitlines()[0]) == (1, "0 lines accepted, 6 refused again")
    assert len(listed(tsd)) == 6

    # Accepted lines are stored and not sent a second time.
    assert tsd.run("mkmetric", "sys.a").status == 0
    done = tsd.run("rejected", "--replay", "--metric", "sys.a")
    assert (done.status, done.out) == (0, "3 lines accepted, 0 refused again\n")
    assert tsd.lines("sys.a") == [f"sys.a {T + n} {value} host=x" for n, value in enumerate((1, 2, 4))]
    assert [one["taken"] for one in listed(tsd, "--state", "all")] == [True, True, False, False, False, True]
    assert tsd.run("rejected", "--replay", "--metric", "sys.a").out == "0 lines accepted, 0 refused again\n"
    with_error = listed(tsd, "--metric", "sys.b")
    assert with_error[0]["sent_again"] is not None

    # Exported lines are those received, for `tsd import`.
    exported = tsd.run("rejected", "--export", "--metric", "sys.b").out
    assert exported == f"put sys.b {T} 3 host=x\n"

    # Resent lines have no sender, and are not kept a second time.
    [client] = json.loads(tsd.run("top", "--once", "--interval", "0", "--json").out)["clients"]
    assert (client["client"], client["refused"], client["accepted"]) == ("127.0.0.1", 6, 0)
    assert client["refused_example"]["reason"] == "unknown_metrics"
    shown = tsd.run("top", "--once", "--interval", "0.1", "--sort", "refused").out
    assert "127.0.0.1" in shown.splitlines()[1]


def test_two_replays_at_once_send_lines_once(tmp_path: Path) -> None:
    """Regression: both sent all lines, and the second one could write them over newer values."""
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "false"})
    with tsd.serve() as served:
        assert b"unknown" in send_lines(served, b"put sys.d %d 1 host=x\n" % T)
        assert tsd.run("mkmetric", "sys.d").status == 0
        served.signal(signal.SIGSTOP)
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(tsd.run, "rejected", "--replay") for _ in range(2)]
            ended, running = wait(runs, PATIENCE_S, FIRST_COMPLETED)
            served.signal(signal.SIGCONT)
        [second], [first] = ended, running
        assert (second.result().status, second.result().out, str(tsd.folder) in second.result().err) == (4, "", True)
        assert first.result() == Done(0, "1 line accepted, 0 refused again\n", "")
        assert tsd.run("rejected", "--replay").out == "0 lines accepted, 0 refused again\n"


def test_rejected_lines_listed_without_daemon(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    with tsd.serve() as served:
        assert send_lines(served, b"put bad\n").startswith(b"put: illegal argument")
    assert [one["line"] for one in listed(tsd)] == ["put bad"]
    assert "put bad" in tsd.run("rejected").out
    done = tsd.run("rejected", "--replay")
    assert done.status == 3
    assert "no daemon runs" in done.err
    assert tsd.run("top", "--once").status == 3


def test_long_rejected_line_truncated_and_not_resent(tmp_path: Path) -> None:
    """Regression: nothing of the line was kept. Its beginning may look like a complete line of another series."""
    tsd = Tsd(tmp_path / "state")
    beginning = f"put sys.c {T} 1 host=x"
    with tsd.serve() as served:
        assert b"line too long" in send_lines(
            served, beginning.encode() + b"y" * 20_000 + b"\nauth " + b"s" * 20_000 + b"\n"
        )
        done = tsd.run("rejected", "--replay")
        assert (done.status, done.out.splitlines()[0]) == (1, "0 lines accepted, 2 refused again")
    point, other = listed(tsd)
    assert (str(point["line"]).rstrip("y"), len(str(point["line"])), point["cut"]) == (beginning, 300, -1)
    assert other["line"] == ""
    assert "yyy … and more\n" in tsd.run("rejected").out
    assert f"\n{beginning}" not in "\n" + tsd.run("rejected", "--export").out


def test_points_of_other_apis_are_kept_as_they_take_them(tmp_path: Path) -> None:
    """Regression: only their errors were kept."""
    tsd = Tsd(tmp_path / "state", {"tsd.kairosdb.enabled": "true", "tsd.heroic.enabled": "true"})
    point = b'{"name":"m","timestamp":%d,"value":%s,"tags":{"host":"x"}}'
    heroic = b'{"series":{"key":"m","tags":{"host":"x"}},"data":{"type":"points","data":[["now",1]]}}'
    with tsd.serve() as served:
        assert b" 400 " in post(served, point % (T, b'"text"'), "/api/v1/datapoints")
        assert b" 400 " in post(served, heroic, "/write")
        assert b" 400 " in post(served, b'[{"metric":"m","timestamp":0,"value":1,"tags":{"host":"x"}}]')
        before = [one["message"] for one in listed(tsd)][:2]
        done = tsd.run("rejected", "--replay")
        assert (done.status, done.out.splitlines()[0]) == (1, "0 lines accepted, 3 refused again")
        found = listed(tsd)
        assert [one["message"] for one in found][:2] == before
        assert "string" in str(before[0])
        assert [one["line"] for one in found][:2] == [
            f'api/datapoints {{"name":"m","tags":{{"host":"x"}},"timestamp":{T},"value":"text"}}',
            'write {"series":{"key":"m","tags":{"host":"x"},"resource":{}},'
            '"data":{"type":"points","data":[["now",1]]}}',
        ]
        assert len(listed(tsd, "--metric", "m")) == 3


@pytest.mark.parametrize("path", ["/api/put", "/api/rollup", "/api/v1/datapoints"])
def test_error_of_a_body_that_is_no_json_is_kept(path: str, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.kairosdb.enabled": "true", "tsd.rollups.enable": "true"})
    with tsd.serve() as served:
        assert b" 400 " in post(served, b'[{"metric":"m",', path)
        [kept] = listed(tsd)
        assert (kept["line"], kept["reason"]) == (path.removeprefix("/").replace("v1/", ""), "illegal_arguments")
        assert kept["message"]
        done = tsd.run("rejected", "--replay")
        assert (done.status, len(listed(tsd))) == (1, 1)


def test_points_of_kairosdb_are_sent_again(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.kairosdb.enabled": "true", "tsd.core.auto_create_metrics": "false"})
    body = {"name": "m", "tags": {"host": "x"}, "datapoints": [[T * 1000, 1], [T * 1000 + 1000, 2.5]]}
    with tsd.serve() as served:
        assert b" 400 " in post(served, json.dumps([body]).encode(), "/api/v1/datapoints")
        assert tsd.run("rejected", "--replay").out.startswith("0 lines accepted, 2 refused again\n")
        assert tsd.run("mkmetric", "m").status == 0
        assert tsd.run("rejected", "--replay").out == "2 lines accepted, 0 refused again\n"
        assert tsd.lines("m") == [f"m {T}000 1 host=x", f"m {T + 1}000 2.5 host=x"]


def test_points_of_heroic_are_sent_again(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.layout": "heroic", "tsd.heroic.resource_tags": "host"})
    points = [[(T + at) * 1000, at] for at in range(3000)]
    series = {"key": "m", "tags": {"role": "y"}, "resource": {"host": "x", "zone": "z"}}
    body = json.dumps({"series": series, "data": {"type": "points", "data": points}}).encode()
    with tsd.serve() as served:
        assert b" 400 " in post(served, body, "/write")
        assert len(listed(tsd, "--metric", "m")) > 1  # a line has a limit
    tsd = tsd.but({"tsd.heroic.resource_tags": "host,zone"})
    with tsd.serve():
        assert tsd.run("rejected", "--replay").status == 0
        assert listed(tsd) == []
        assert tsd.lines("m") == [f"m {T + at}000 {at}.0 role=y host=x zone=z" for at in range(3000)]


def test_points_a_replay_stored_are_not_written_again(tmp_path: Path) -> None:
    """Regression: a text with one bad point stayed as a whole, and its next replay undid corrections of the others."""
    tsd = Tsd(tmp_path / "state", {"tsd.storage.layout": "heroic", "tsd.heroic.resource_tags": "host"})
    series = {"key": "m", "tags": {"role": "y"}, "resource": {"host": "x", "zone": "z"}}
    body = {"series": series, "data": {"type": "points", "data": [[T * 1000, 1], ["now", 2], [(T + 1) * 1000, 3]]}}
    with tsd.serve() as served:
        assert b" 400 " in post(served, json.dumps(body).encode(), "/write")
        [whole] = listed(tsd)
    tsd = tsd.but({"tsd.heroic.resource_tags": "host,zone"})
    with tsd.serve() as served:
        assert tsd.run("rejected", "--replay").out.startswith("0 lines accepted, 1 refused again\n")
        [left] = listed(tsd)
        assert '"now"' in str(left["line"])
        assert left["message"] != whole["message"]
        assert all(left[name] == whole[name] for name in ("time", "peer", "account"))
        corrected = {"series": series, "data": {"type": "points", "data": [[T * 1000, 5]]}}
        assert b" 200 " in post(served, json.dumps(corrected).encode(), "/write")
        assert tsd.run("rejected", "--replay").out.startswith("0 lines accepted, 1 refused again\n")
        assert [one["line"] for one in listed(tsd)] == [left["line"]]
        assert tsd.lines("m") == [f"m {T}000 5.0 role=y host=x zone=z", f"m {T + 1}000 3.0 role=y host=x zone=z"]


def test_line_of_another_charset_is_sent_again_in_it(tmp_path: Path) -> None:
    """Regression: a replay read UTF-8 as ISO-8859-1, and stored a metric that no client had sent."""
    tsd = Tsd(tmp_path / "state", {"tsd.network.telnet_charset": "utf-8"})
    with tsd.serve() as served:
        assert b"illegal" in send_lines(served, "put m.ź {T} 1 host=x\n".replace("{T}", str(T)).encode())
        assert b"illegal" in send_lines(served, f"put m.ü {T} 2 host=x\n".encode("latin-1"))
        assert tsd.run("rejected", "--replay").out.startswith("0 lines accepted, 2 refused again\n")
    tsd = tsd.but({"tsd.network.telnet_charset": "iso-8859-1"})
    with tsd.serve():
        exported = tsd.run("rejected", "--export", encoding="latin-1").out
        assert all(line.startswith("# ") for line in exported.splitlines())
        assert tsd.run("rejected", "--replay", "--match", " 2 host").out == "1 line accepted, 0 refused again\n"
        assert tsd.lines("m.ü") == [f"m.ü {T} 2 host=x"]


def test_lines_of_kairosdbs_dialect_are_sent_again_in_it(tmp_path: Path) -> None:
    """Regression: a replay stored a time to live as a tag, and did not send `putm`."""
    tsd = Tsd(tmp_path / "state", {"tsd.kairosdb.enabled": "true", "tsd.kairosdb.dialect": "true"})
    lines = [
        f"put m {T} 1 kairos_opt.ttl=5 host=x",
        f"putm m {T}000 1 kairos_opt.ttl=5 host=x",
        f"puts m {T}000 a host=x",
    ]
    with tsd.serve() as served:
        assert send_lines(served, "".join(f"{line}\n" for line in lines).encode()).count(b"these tables") == 3
        before = listed(tsd, "--metric", "m")
        assert [one["line"] for one in before] == lines
        assert tsd.run("rejected", "--replay").out.startswith("0 lines accepted, 3 refused again\n")
        assert [one["message"] for one in listed(tsd)] == [one["message"] for one in before]
        assert send_lines(served, f"put m {T} 1 host=x\n".encode()).startswith(b"synced")
        assert tsd.lines("m") == [f"m {T}000 1 host=x"]


def test_lines_refused_by_writer_are_listed(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    (tsd.folder / "refused").mkdir(parents=True)
    (tsd.folder / "refused" / "00000001.lines").write_bytes(b"# unknown metric: x\nput x %d 1 a=b\n" % T)
    with tsd.serve():
        assert tsd.run("rejected", "--replay").out == "1 line accepted, 0 refused again\n"
        assert tsd.lines("x") == [f"x {T} 1 a=b"]
        assert listed(tsd) == []


def test_rejected_refuses_bad_arguments(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    for words in (["--match", "("], ["--since", "soon"], ["--export", "--replay"]):
        assert tsd.run("rejected", *words).status == 2
    assert tsd.run("rejected", "--set", "tsd.rejected.max_bytes=1").status == 2


@pytest.mark.parametrize("words", [[], ["--summary"], ["--json"]])
def test_folder_that_is_no_state_folder_is_an_error(tmp_path: Path, words: list[str]) -> None:
    """Regression: in a wrong folder, or without access to the right one, there seemed to be no refused lines."""
    tsd = Tsd(tmp_path / "state")
    for _ in range(2):
        refused = tsd.run("rejected", *words)
        assert (refused.status, refused.out) == (1, "")
        assert str(tsd.folder) in refused.err
        tsd.folder.mkdir(exist_ok=True)
    (tsd.folder / "format").write_text("2")
    assert tsd.run("rejected", *words).status == 0
