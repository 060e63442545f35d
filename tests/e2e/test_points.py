"""`tsd import` and `tsd scan` on both engines and with a daemon."""

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.put_lines import Generator, last_of_each_instant, series
from tests.e2e.command import HOST, ROOT, Done, Tsd
from tsd.store import Put

pytestmark = pytest.mark.slow
HOURS = [1356998400, 1357002000]
SERIES = [
    series(b"sys.cpu.user", b"host=web01 cpu=0"),
    series(b"sys.cpu.user", b"cpu=1 host=web01 dc=lga"),
    series(b"temp.caf\xe9", b"lieu=\xe9tage"),
]
T = 1356998400
MIXED = f"""\
# from another store
sys.cpu {T} 42 host=web01
put sys.cpu {T + 1}.500 0.1 host=web01

sys.cpu {T + 2} 1x host=web01
sys.cpu {T + 3} 300
sys.cpu {T + 4} 1e3  host=web01\r
sys.cpu 0 1 host=web01
bad:name {T} 1 host=web01
sys.cpu {T + 5} -7 host=web01"""
REASONS = {
    5: f"invalid value: Invalid character 'x' in 1x: sys.cpu {T + 2} 1x host=web01",
    6: f"illegal argument: not enough arguments (need least 4, got 3): sys.cpu {T + 3} 300",
    8: "illegal argument: invalid timestamp: 0: sys.cpu 0 1 host=web01",
    9: f'illegal argument: Invalid metric name ("bad:name"): illegal character: :: bad:name {T} 1 host=web01',
}
SUMMARY = "imported 4 data points, refused 4 lines\n  illegal_arguments: 3\n  invalid_values: 1\n"
KEPT = [
    f"sys.cpu {T} 42 host=web01",
    f"sys.cpu {T + 1}500 0.1 host=web01",
    f"sys.cpu {T + 4} 1000.0 host=web01",
    f"sys.cpu {T + 5} -7 host=web01",
]


@pytest.mark.difference("import")
def test_import_reads_scan_output(engine: Tsd, tmp_path: Path) -> None:
    lines = Generator(1, SERIES, HOURS).lines(1000, once_an_instant=True)
    file = tmp_path / "points"
    file.write_bytes(b"".join(sent.line.removeprefix(b"put ") + b"\n" for sent in lines))
    done = engine.run("import", file)
    assert (done.status, done.out, done.err.splitlines()[-1:]) == (
        0,
        "",
        ["imported 1,000 data points, refused 0 lines"],
    )
    metrics = sorted({name.metric.decode("latin-1") for name in SERIES})
    printed = engine.lines(*metrics)
    assert len(printed) == sum(map(len, last_of_each_instant(lines).values())) == 1000
    fresh = Tsd(tmp_path / "fresh")
    taken = fresh.run("import", "-", stdin="".join(line + "\n" for line in printed).encode("latin-1"))
    assert taken.on_new_store(fresh.folder).err == "imported 1,000 data points, refused 0 lines\n"
    assert without_order(fresh.lines(*metrics)) == without_order(printed)
    assert {tuple(line.split(" ")[1:3]) for line in printed} == {(str(s.time), repr(s.number)) for s in lines}


def without_order(lines: list[str]) -> list[list[str]]:
    """Sort rows and tags, whose order follows UIDs and so differs between stores."""
    return sorted([*words[:3], *sorted(words[3:])] for words in (line.split(" ") for line in lines))


@pytest.mark.difference(
    "import",
    topic="commands",
    theirs="`import` stops at the first bad line, needs lines in order of time, and stores every float on 4 bytes",
    ours="It imports all good lines in any order and reports the refused ones. Floats are stored as by `put`",
)
@pytest.mark.parametrize("form", ["plain", "gzip", "standard input"])
def test_import_reports_refused_line_numbers(tmp_path: Path, form: str) -> None:
    tsd = Tsd(tmp_path / "state")
    path = {"plain": str(tmp_path / "points"), "gzip": str(tmp_path / "points.gz"), "standard input": "-"}[form]
    if form != "standard input":
        Path(path).write_bytes(gzip.compress(MIXED.encode()) if form == "gzip" else MIXED.encode())
    first = tsd.run("import", path, stdin=MIXED.encode() if form == "standard input" else b"")
    done = first.on_new_store(tsd.folder)
    refused = "".join(f"{path}:{number}: {reason}\n" for number, reason in REASONS.items())
    assert done == Done(1, "", refused + SUMMARY)
    assert tsd.lines("sys.cpu") == KEPT


def test_refused_lines_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Regression: of a compressed file without .gz in its name, bytes were printed as they are."""
    done = Tsd(tmp_path / "state").run("import", "-", stdin=b"sys.\x1b[2Jcpu 1 1 a=b\n\x1f\x8b\x08\n")
    assert done.status == 1
    assert all(line.isprintable() for line in done.err.splitlines())
    assert done.err.count("\\x1b[2J") >= 1


def test_import_tells_of_a_store_that_it_makes(tmp_path: Path) -> None:
    """In a wrong folder the points would be in another store than the daemon's."""

    def run(*options: str) -> Done:
        words = [sys.executable, "-m", "tsd", "import", "-", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, input=b"", capture_output=True, cwd=tmp_path, env=environment)
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    for told in (True, False):
        done = run()
        assert (done.status, str(tmp_path / "var") in done.err) == (0, told)
    whole = run("--data", f"{tmp_path / 'other'}/")
    assert (whole.status, str(tmp_path / "other") in whole.err) == (0, True)
    unusable = run("--data", 256 * "d")  # a longer name than file systems allow
    assert (unusable.status, "--data" in unusable.err) == (1, True)


def test_kept_refused_lines_can_be_corrected(engine: Tsd, tmp_path: Path) -> None:
    points, rejects = tmp_path / "points", tmp_path / "rejects"
    points.write_text(MIXED)
    done = engine.run("import", points, "--rejects", rejects, "--auto-metric")
    assert (done.status, done.out, done.err.endswith(SUMMARY)) == (1, "", True)
    kept = rejects.read_text().splitlines()
    assert kept[::2] == [f"# {points}:{number}: {reason.rpartition(': ')[0]}" for number, reason in REASONS.items()]
    assert kept[1::2] == [reason.rpartition(": ")[2] for reason in REASONS.values()]
    rejects.write_text("\n".join(line.replace("1x", "12") for line in kept[:2]))
    before = rejects.read_text()
    refused = engine.run("import", points, rejects, "--rejects", rejects)  # would be lost before it is read
    assert (refused.status, str(rejects) in refused.err, rejects.read_text()) == (1, True, before)
    assert engine.run("import", rejects) == Done(0, "", "imported 1 data point, refused 0 lines\n")
    assert engine.lines("sys.cpu") == [*KEPT[:2], f"sys.cpu {T + 2} 12 host=web01", *KEPT[2:]]


def test_import_says_that_refused_lines_cannot_be_kept(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    done = tsd.run("import", "-", "--rejects", "/dev/full", stdin=b"bad\n").on_new_store(tsd.folder)
    why = "No space left on device. Import again: lines may not be stored"
    assert done == Done(1, "", f"tsd: --rejects /dev/full: {why}\n")


def test_import_skips_and_reports_unreadable_files(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    first, no_gzip, cut, last = (tmp_path / name for name in ("first", "no.gz", "cut.gz", "last"))
    first.write_text(f"sys.cpu {T} 42 host=web01\n")
    no_gzip.write_text("text")
    cut.write_bytes(gzip.compress(f"sys.cpu {T + 2} 44 host=web01\nsys.cpu {T + 3} 4".encode())[:-8])
    last.write_text(f"sys.cpu {T + 1} 43 host=web01\n")
    errors = [
        f"tsd: {tmp_path}/nosuch: No such file or directory",
        f"tsd: {no_gzip}: Not a gzipped file (b'te')",
        f"tsd: {cut}: Compressed file ended before the end-of-stream marker was reached",
        "imported 3 data points, refused 0 lines",
    ]
    done = tsd.run("import", first, tmp_path / "nosuch", no_gzip, cut, last).on_new_store(tsd.folder)
    assert done == Done(1, "", "".join(line + "\n" for line in errors))
    assert tsd.lines("sys.cpu") == [f"sys.cpu {T + n} {42 + n} host=web01" for n in range(3)]


@pytest.mark.parametrize("cut", [0, 5])
def test_import_fails_for_a_compressed_file_without_content(tmp_path: Path, cut: int) -> None:
    """Regression: a file that a full disk had cut to 0 bytes counted as imported, with exit status 0."""
    path = tmp_path / "points.gz"
    path.write_bytes(gzip.compress(b"")[:cut])
    done = Tsd(tmp_path / "state").run("import", path)
    assert (done.status, f"tsd: {path}: " in done.err) == (1, True), done


def test_import_stores_whole_lines_before_the_damage_of_a_file(tmp_path: Path) -> None:
    """Regression: up to a megabyte of lines before the damage was left out."""
    tsd = Tsd(tmp_path / "state")
    wanted = [f"sys.cpu {T + n} {n} host=web01" for n in range(3000)]
    whole = gzip.compress("\n".join(wanted).encode() + b"\n")
    cut, garbage = tmp_path / "cut.gz", tmp_path / "garbage.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    garbage.write_bytes(whole + b"more")
    assert tsd.run("import", cut).status == 1
    stored = tsd.lines("sys.cpu")
    assert len(stored) > 1000
    assert stored == wanted[: len(stored)]
    assert tsd.run("import", garbage).err.endswith("imported 3,000 data points, refused 0 lines\n")
    assert tsd.lines("sys.cpu") == wanted


@pytest.mark.parametrize("form", ["plain", "gzip"])
def test_import_refuses_long_lines(tmp_path: Path, form: str) -> None:
    """Regression: a line of 33,000 bytes, too long for a row key, aborted the whole import."""
    tsd = Tsd(tmp_path / "state")
    points, rejects = tmp_path / ("points.gz" if form == "gzip" else "points"), tmp_path / "rejects"
    first, last = f"sys.cpu {T} 42 host=web01", f"sys.cpu {T + 1} 43 host=web01"
    text = "\n".join([first, f"{'m' * 33_000} {T} 1 host=web01", "x" * (5 << 20), last, "y" * 16385]).encode()
    points.write_bytes(gzip.compress(text) if form == "gzip" else text)
    counted = "imported 2 data points, refused 3 lines\n  line_too_long: 3\n"
    refused = [f"{points}:{n}: illegal argument: line too long: more than 16384 bytes\n" for n in (2, 3, 5)]
    assert tsd.run("import", points).on_new_store(tsd.folder) == Done(1, "", "".join(refused) + counted)
    assert tsd.run("import", points, "--rejects", rejects) == Done(1, "", counted)
    assert rejects.read_text() == "".join(f"# {line}" for line in refused)
    assert tsd.lines("sys.cpu") == [first, last]


def test_import_keeps_refused_lines_of_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    points, rejects = os.fsdecode(os.fsencode(tmp_path) + b"/p\xff"), tmp_path / "rejects"
    Path(points).write_bytes(f"put 123 {T} 1 a=b\nbad\nput {T} 2 a=b\n".encode())
    done = tsd.run("import", points, "--rejects", rejects, "--auto-metric").on_new_store(tsd.folder)
    assert done == Done(1, "", "imported 2 data points, refused 1 line\n  illegal_arguments: 1\n")
    assert os.fsencode(f"# {points}:2: ") in rejects.read_bytes()
    assert (tsd.lines("123"), tsd.lines("put")) == ([f"123 {T} 1 a=b"], [f"put {T} 2 a=b"])


def test_import_of_file_without_newlines_bounds_memory(tmp_path: Path) -> None:
    room = 1 << 30  # limit for the process: interpreter and libraries use half of it
    with Tsd(tmp_path / "state").popen("import", "-") as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (room, room))
        assert process.stdin
        for _ in range(room >> 20):
            process.stdin.write(bytes(1 << 20))
        _, error = process.communicate()
    assert process.returncode == 1
    assert error.endswith(b"imported 0 data points, refused 1 line\n  line_too_long: 1\n")


def test_import_refuses_unknown_metrics(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "false"})
    line = f"sys.cpu {T} 42 host=web01"
    refused = f"-:1: unknown metric: No such name for 'metrics': 'sys.cpu': {line}\n"
    counted = "imported 0 data points, refused 1 line\n  unknown_metrics: 1\n"
    done = tsd.run("import", "-", stdin=line.encode()).on_new_store(tsd.folder)
    assert done == Done(1, "", refused + counted)
    assert tsd.run("import", "-", "--auto-metric", stdin=line.encode()).status == 0
    assert tsd.lines("sys.cpu") == [line]


def test_scan_prints_raw_rows(engine: Tsd) -> None:
    rows = f"sys.cpu {T} 42 host=web01\nsys.cpu {T + 1}500 0.1 host=web01\nsys.cpu {T + 3600} -1 host=web01\n"
    assert engine.run("import", "-", stdin=rows.encode()).status == 0
    done = engine.run("scan", "2013/01/01", "2013/01/02", "sum", "sys.cpu", "host=web01", env={"TZ": "UTC"})
    assert (done.status, done.err) == (0, "")
    first, second = "[0, 0, 1, 80, -30, 39, 0, 0, 0, 1, 0, 0, 1]", "[0, 0, 1, 80, -30, 53, 16, 0, 0, 1, 0, 0, 1]"
    midnight, tenth = "(Tue Jan 01 00:00:00 UTC 2013)", "[63, -71, -103, -103, -103, -103, -103, -102]"
    assert done.out.splitlines() == [
        f"{first} sys.cpu {T} {midnight} {{host=web01}}",
        f"  [0, 0, -16, 1, 119, 15]\t[42, {tenth[1:-1]}, 1] = 2 values:",
        f"    [0, 0]\t[42]\t0\tl\t{T}\t{midnight}",
        f"    [-16, 1, 119, 15]\t{tenth}\t1500\tf\t{T + 1}500\t(Tue Jan 01 00:00:01 UTC 2013)",
        f"{second} sys.cpu {T + 3600} (Tue Jan 01 01:00:00 UTC 2013) {{host=web01}}",
        f"  [0, 0]\t[-1]\t0\tl\t{T + 3600}\t(Tue Jan 01 01:00:00 UTC 2013)",
    ]
    later = engine.run("scan", "--import", str(T + 3600), str(T + 3600), "sum", "sys.cpu")
    assert later.out == f"sys.cpu {T + 3600} -1 host=web01\n"
    unknown = engine.run("scan", "1", "sum", "sys.cpu", "host=nosuch")
    assert unknown == Done(1, "", "tsd: No such name for 'tagv': 'nosuch'\n")


@pytest.mark.parametrize("tags", [(), ("host=web01",)], ids=["all", "of a tag"])
def test_scan_reports_unreadable_rows(tmp_path: Path, tags: tuple[str, ...]) -> None:
    """Regression: a key of invalid length ended the scan."""
    tsd = Tsd(tmp_path / "state")
    lines = [f"sys.cpu {T + hour * 3600} {hour} host=web01" for hour in range(3)]
    assert tsd.run("import", "-", stdin="\n".join(lines).encode()).status == 0
    base = (T + 3600).to_bytes(4, "big")
    odd_key, odd_cell = b"\0\0\1" + base + b"\0\0", b"\0\0\1" + base + b"\0\0\1\0\0\1"
    tsd.put_directly("tsdb", Put(odd_key, b"t:\0\0", b"\1"), Put(odd_cell, b"t:\0\7", b"\1\2\3"))
    done = tsd.run("scan", "--import", "1", "sum", "sys.cpu", *tags)
    assert (done.status, done.out.splitlines()) == (1, [lines[0], lines[2]])
    assert [line.partition(":")[2] for line in done.err.splitlines()] == [
        f" a row cannot be read: row key {odd_key.hex()}: got 9 bytes, wanted 7 and a multiple of 6",
        f" row {odd_cell.hex()} of sys.cpu cannot be read: row {odd_cell.hex()}: cell 0007 = 010203: "
        "got 3 bytes, wanted 8",
    ]


def test_scan_shows_the_daemons_newest_points(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    with tsd.serve() as daemon:
        for turn in range(3):
            assert daemon.send_lines(f"put sys.cpu {T + turn} {turn} host=web01\n".encode()) == b"synced 1\n"
            assert tsd.lines("sys.cpu")[turn:] == [f"sys.cpu {T + turn} {turn} host=web01"]


def test_import_adds_to_rows_of_running_daemon(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    with tsd.serve() as daemon:
        daemon.send_lines(f"put sys.cpu {T} 1 host=web01\nput sys.cpu {T + 2} 3 host=web01\n".encode())
        assert tsd.run("import", "-", stdin=f"sys.cpu {T + 1} 2 host=web01\n".encode()).status == 0
        wanted = [f"sys.cpu {T + n} {n + 1} host=web01" for n in range(3)]
        assert tsd.lines("sys.cpu") == wanted
    assert tsd.lines("sys.cpu") == wanted


def test_later_import_wins(tmp_path: Path) -> None:
    """Regression: the daemon's window was written after the import, so its older value won."""
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    with tsd.serve() as daemon:
        assert daemon.send_lines(f"put sys.cpu {T} 1 host=web01\n".encode()) == b"synced 1\n"
        assert tsd.run("import", "-", stdin=f"sys.cpu {T} 2 host=web01\n".encode()).status == 0
        assert tsd.lines("sys.cpu") == [f"sys.cpu {T} 2 host=web01"]


def test_import_refused_if_daemon_cannot_flush(tmp_path: Path) -> None:
    away = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": f"{HOST}:1"}
    tsd = Tsd(tmp_path / "state", {**away, "tsd.storage.flush_interval": "3600000"})
    with tsd.serve("--port", "0", "--set", "tsd.core.drain_timeout=0") as daemon:
        assert daemon.send_lines(f"put sys.cpu {T} 1 host=web01\n".encode()) == b"synced 1\n"
        done = tsd.run("import", "-", stdin=f"sys.cpu {T} 2 host=web01\n".encode())
    assert (done.status, done.out) == (3, "")
    assert done.err.startswith("tsd: the daemon cannot write")
