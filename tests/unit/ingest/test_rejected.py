"""The log of refused lines: what is kept, how much, and what of it outlives a crash, a flood and a full disk."""

import resource
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tsd.auth.roles import Principal, Role
from tsd.errors import BadLine
from tsd.ingest.limits import RefusedLine
from tsd.ingest.rejected.files import (
    DroppedLines,
    Outcome,
    RejectedFilter,
    RejectedLine,
    Replayed,
    files,
    groups,
    mark_unstored,
    read_entries,
    read_records,
)
from tsd.ingest.rejected.log import RejectedLog
from tsd.server.clients import Client
from tsd.server.peer import Peer

LARGE = 1 << 30


def refusals(count: int, line: bytes = b"put m x", reason: str = "r") -> list[RefusedLine]:
    return [RefusedLine(line, BadLine(reason, f"no {number}")) for number in range(count)]


def peer(address: str = "10.0.0.1", port: int = 7, name: str = "") -> Peer:
    return Peer(address, port, Client(address), principal=Principal(name, Role.WRITE))


@asynccontextmanager
async def writing(folder: Path, *, max_bytes: int = 64 << 20, per_second: int = LARGE) -> AsyncIterator[RejectedLog]:
    rejected = RejectedLog(
        folder, folder.parent / "refused", max_bytes=max_bytes, per_second=per_second, now_ms=lambda: 1000
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rejected.run)
        yield rejected
        nursery.cancel_scope.cancel()


def kept(folder: Path) -> list[RejectedLine]:
    return [record for _, record in read_records(folder) if isinstance(record, RejectedLine)]


def dropped(folder: Path) -> int:
    return sum(sum(one.lines.values()) for _, one in read_records(folder) if isinstance(one, DroppedLines))


async def test_refused_line_is_kept_with_its_details(tmp_path: Path) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(name="agent"), [RefusedLine(b'put \xff\x00" x', BadLine("invalid_values", "bad \xe9"))])
        await rejected.flush()
        [record] = kept(tmp_path)
    assert record == RejectedLine(1000, "invalid_values", "bad é", "10.0.0.1:7", "agent", 'put ÿ\0" x')
    assert record.bytes == b'put \xff\x00" x'


@pytest.mark.parametrize("max_bytes", [LARGE, 0])
async def test_events_of_a_flood_are_few_and_count_all_lines(
    tmp_path: Path, max_bytes: int, autojump_clock: MockClock
) -> None:
    """Senders are told to look into the log, and many never read why their points are refused."""
    with capture_logs() as logs:
        async with writing(tmp_path, max_bytes=max_bytes) as rejected:
            for number in range(1000):
                rejected.add(peer(name="agent", port=number), refusals(2, reason=f"r{number}"))
            await trio.sleep(3600)
            rejected.add(peer("10.0.0.2"), refusals(1))
    first, last = (entry for entry in logs if entry["event"] == "lines.refused")
    assert (first["reason"], first["error"], first["peer"], first["account"]) == ("r0", "no 0", "10.0.0.1:0", "agent")
    assert (last["reason"], last["peer"]) == ("r", "10.0.0.2:7")
    assert first["lines"] + last["lines"] == 2001


async def test_message_with_lone_surrogate_is_kept(tmp_path: Path) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), [RefusedLine(b"put m x", BadLine("r", "bad \ud800"))])
        rejected.add(peer(), refusals(1))
        await rejected.flush()
        assert [record.message for record in kept(tmp_path)] == ["bad ?", "no 0"]


async def test_records_are_written_when_the_daemon_stops(tmp_path: Path) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(3))
    assert len(kept(tmp_path)) == 3
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(2))
    assert len(kept(tmp_path)) == 5
    assert len(files(tmp_path)) == 1


async def test_long_line_is_cut_and_its_cut_recorded(tmp_path: Path) -> None:
    long = b"api/put " + b"x" * 1_000_000
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(1, long))
        await rejected.flush()
    [record] = kept(tmp_path)
    assert long.startswith(record.bytes)
    assert (len(record.bytes) < len(long), len(record.bytes) + record.cut) == (True, len(long))


async def test_flood_is_sampled_and_other_clients_are_kept(tmp_path: Path) -> None:
    async with writing(tmp_path, per_second=10) as rejected:
        for _ in range(100):
            rejected.add(peer(), refusals(100))
        rejected.add(peer("10.0.0.2"), refusals(20, reason="other"))
        await rejected.flush()
        rejected.add(peer("10.0.0.3"), refusals(1))  # the count is written with it
        await rejected.flush()
    records = kept(tmp_path)
    flood = [one for one in records if one.peer.startswith("10.0.0.1:")]
    assert 10 <= len(flood) < 1000
    assert len([one for one in records if one.reason == "other"]) == 20
    assert len(records) + dropped(tmp_path) == 10_000 + 21 == len(records) + rejected.statistics().dropped


async def test_folder_size_is_bounded_and_the_newest_stay(tmp_path: Path, autojump_clock: MockClock) -> None:
    bound = 1 << 20
    async with writing(tmp_path, max_bytes=bound) as rejected:
        for number in range(20):
            rejected.add(peer(), refusals(500, b"put %d " % number + b"x" * 200))
            await rejected.flush()
    sizes = [path.stat().st_size for _, path in files(tmp_path)]
    assert bound / 2 < sum(sizes) <= bound
    assert sum(sizes) == rejected.statistics().size
    lines = [record.line for record in kept(tmp_path)]
    assert lines[-1].startswith("put 19 ")
    assert lines == sorted(lines, key=lambda line: int(line.split(" ")[1]))


@pytest.mark.parametrize("remove", [lambda folder: next(folder.iterdir()).unlink(), shutil.rmtree])
async def test_lines_after_the_files_were_removed_are_kept(tmp_path: Path, remove: Callable[[Path], None]) -> None:
    """Regression: they were written to the file without a name."""
    folder = tmp_path / "rejected"
    async with writing(folder) as rejected:
        for reason in ("before", "after"):
            rejected.add(peer(), refusals(1, reason=reason))
            await rejected.flush()
            if reason == "before":
                remove(folder)
    assert [one.reason for one in kept(folder)] == ["after"]


async def test_log_of_size_0_writes_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path / "none", max_bytes=0) as rejected:
        rejected.add(peer(), refusals(3))
        await rejected.flush()
        await rejected.mark([("1-0", Outcome(True))])
    assert not (tmp_path / "none").exists()


async def test_lines_of_one_large_request_take_bounded_memory(tmp_path: Path) -> None:
    """A refused metric of KairosDB's API may have as many points as a body holds."""
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(3000, b"api/datapoints " + b"x" * 30_000))
        await rejected.flush()
        assert sum(len(one.line) for one in kept(tmp_path)) < 10_000_000
    assert 0 < len(kept(tmp_path)) == 3000 - dropped(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 60, 150])
async def test_truncated_record_is_dropped_and_the_log_continues(tmp_path: Path, cut: int) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(3))
    [(_, path)] = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert len(kept(tmp_path)) == (2 if cut < whole.index(b"\n") else 1)
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(2))
    assert len(kept(tmp_path)) == (4 if cut < whole.index(b"\n") else 3)
    assert all(line.startswith(b'{"kind"') for line in path.read_bytes().splitlines())


async def test_invalid_records_are_skipped(tmp_path: Path) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(3))
    [(_, path)] = files(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0\xff{\n" + b"{}\n" + lines[2])
    assert [record.message for record in kept(tmp_path)] == ["no 0", "no 2"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may become longer than 2,000 bytes: a write fails as it does on a full disk, some bytes in."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


async def test_full_disk_loses_only_unwritten_records(tmp_path: Path, full_disk: None) -> None:
    async with writing(tmp_path) as rejected:
        rejected.add(peer(), refusals(3))
        await rejected.flush()
        rejected.add(peer(), refusals(100))
        await rejected.flush()
        statistics = rejected.statistics()
        assert (statistics.kept, statistics.dropped, statistics.failures) == (3, 100, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        rejected.add(peer(), refusals(2))
        await rejected.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(kept(tmp_path)) == 5
    assert dropped(tmp_path) == 100


async def test_records_lost_by_an_internal_error_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(records: object) -> bytes:
        raise ValueError("as the test wants")

    rejected = RejectedLog(tmp_path, tmp_path / "refused", max_bytes=64 << 20, per_second=LARGE, now_ms=lambda: 1000)
    with monkeypatch.context() as patch:
        patch.setattr("tsd.ingest.rejected.log.encode_records", defect)
        rejected.add(peer(), refusals(3))
        with pytest.raises(ValueError, match="as the test wants"):
            await rejected.run()
    assert (rejected.statistics().kept, rejected.statistics().dropped) == (0, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rejected.run)  # as the daemon has it run again
        rejected.add(peer(), refusals(2))
        await rejected.flush()
        nursery.cancel_scope.cancel()
    assert (len(kept(tmp_path)), dropped(tmp_path)) == (2, 3)
    assert (rejected.statistics().kept, rejected.statistics().dropped) == (2, 3)


async def test_resent_lines_are_marked(tmp_path: Path) -> None:
    folder, unstored = tmp_path / "rejected", tmp_path / "refused"
    unstored.mkdir()
    (unstored / "00000007.lines").write_bytes(b"# unknown metric: q\nput q 1 2 a=b\n# illegal argument: z\nput z\n")
    async with writing(folder) as rejected:
        rejected.add(peer(), refusals(3))
        await rejected.flush()
        names = [entry.name for entry in read_entries(folder, unstored)]
        assert names[:2] == ["00000007.lines-20", "00000007.lines-56"]
        await rejected.mark([(names[0], Outcome(True)), (names[2], Outcome(True))])
        await rejected.mark([(names[3], Outcome(False, "new", "still no"))])
    entries = list(read_entries(folder, unstored))
    assert [entry.name for entry in entries] == names
    assert [entry.taken for entry in entries] == [True, False, True, False, False]
    assert [entry.reason for entry in entries] == ["unknown_metrics", "illegal_arguments", "r", "new", "r"]
    assert entries[3].message == "still no"


async def test_marks_of_unstored_lines_survive_the_log(tmp_path: Path) -> None:
    """Regression: the log dropped the marks with its oldest file, and the lines were listed and sent again."""
    folder, unstored = tmp_path / "rejected", tmp_path / "refused"
    unstored.mkdir()
    path = unstored / "00000007.lines"
    path.write_bytes(b"# unknown metric: q\nput q 1 2 a=b\nput q 2 2 a=b\n")
    names = [entry.name for entry in read_entries(folder, unstored)]
    for max_bytes in (64 << 20, 0):  # whatever is kept of other lines
        async with writing(folder, max_bytes=max_bytes) as rejected:
            await rejected.mark([(names[0], Outcome(False, "r", "not yet")), (names[1], Outcome(True))])
            await rejected.mark([(names[0], Outcome(max_bytes == 0))])
        for _, log in files(folder):
            log.unlink()
        assert [entry.taken for entry in read_entries(folder, unstored)] == [max_bytes == 0, True]
    with next(unstored.glob("*.marks")).open("ab") as marks:
        marks.write(b'{"kind":"repl')  # as a crash leaves it
    async with writing(folder) as rejected:
        await rejected.mark([(names[0], Outcome(False, "r", "again")), ("00000008.lines-0", Outcome(True))])
    assert [entry.message for entry in read_entries(folder, unstored)] == ["again", "unknown metric: q"]
    path.write_bytes(b"# unknown metric: z\nput z 1 2 a=b\nput z 2 2 a=b\n")  # others, in a file of the same number
    assert [entry.taken for entry in read_entries(folder, unstored)] == [False, False]


async def test_marks_are_kept_after_the_log_was_turned_off(tmp_path: Path) -> None:
    """Regression: they were not written, and each replay sent the lines of before again."""
    folder = tmp_path / "rejected"
    async with writing(folder) as rejected:
        rejected.add(peer(), refusals(3))
    first, second, third = [entry.name for entry in read_entries(folder, tmp_path)]
    async with writing(folder, max_bytes=0) as rejected:
        await rejected.mark([(first, Outcome(True)), (second, Outcome(False, "r", "again"))])
    await rejected.mark([(third, Outcome(True))])  # the daemon stops
    entries = list(read_entries(folder, tmp_path))
    assert [(entry.name, entry.taken) for entry in entries] == [(first, True), (second, False), (third, True)]


async def test_points_that_a_replay_keeps_apart_are_not_in_the_same_reading(tmp_path: Path) -> None:
    folder = tmp_path / "rejected"
    async with writing(folder) as rejected:
        rejected.add(peer(name="agent"), refusals(2))
        await rejected.flush()
        reading = read_entries(folder, tmp_path)
        whole = next(reading)
        left = RefusedLine(b"put m 1 x a=b", BadLine("still", "no"))
        await rejected.mark([(whole.name, Outcome(True))], {whole.name: [left]})
        assert [entry.name for entry in reading] == [name for name, _ in list(read_records(folder))[1:2]]
    entries = list(read_entries(folder, tmp_path))
    assert [entry.taken for entry in entries] == [True, False, False]
    [*_, last] = [entry.refused for entry in entries]
    assert (last.bytes, last.reason, last.message) == (left.line, "still", "no")
    assert (last.peer, last.account, last.time) == ("10.0.0.1:7", "agent", 1000)


async def test_missing_file_of_the_writer_spares_marks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (7, 8):
        (tmp_path / f"0000000{number}.lines").write_bytes(b"# unknown metric: q\nput q 1 2 a=b\n")
    (tmp_path / "00000006.lines").symlink_to(tmp_path / "gone")  # listed, and not there
    names = [entry.name for entry in read_entries(tmp_path / "rejected", tmp_path)]
    assert names == ["00000007.lines-20", "00000008.lines-20"]
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as it was a moment ago
    mark_unstored(tmp_path, [Replayed(1000, name, taken=True) for name in ["00000006.lines-20", *names]])
    assert [entry.taken for entry in read_entries(tmp_path / "rejected", tmp_path)] == [True, True]


async def test_each_field_of_a_selection_filters(tmp_path: Path) -> None:
    folder = tmp_path / "rejected"
    async with writing(folder) as rejected:
        rejected.add(peer("10.0.0.1"), refusals(2, b"put sys.cpu 1 x a=b", "invalid_values"))
        rejected.add(peer("10.0.0.2", name="agent"), refusals(1, b"rollup 1h-sum sys.mem 1 x a=b"))
        rejected.add(peer("fd00::1"), refusals(1, b'api/put {"metric":"web.hits"}'))
    entries = list(read_entries(folder, tmp_path))

    def count(selection: RejectedFilter) -> int:
        return sum(map(selection.has, entries))

    assert count(RejectedFilter()) == 4
    assert count(RejectedFilter(reason="invalid_values")) == 2
    assert count(RejectedFilter(source="10.0.0.1")) == count(RejectedFilter(source="10.0.0.1:7")) == 2
    assert (
        count(RejectedFilter(source="agent"))
        == count(RejectedFilter(source="fd00::*"))
        == count(RejectedFilter(source="agent@*"))
        == 1
    )
    assert count(RejectedFilter(metric="sys.*")) == 3
    assert count(RejectedFilter(metric="web.hits")) == 1
    assert count(RejectedFilter(since_ms=1001)) == count(RejectedFilter(until_ms=1000)) == 0
    assert count(RejectedFilter(taken=True)) == 0
    found = [(one.reason, one.source, one.metric, one.lines) for one in groups(entries)]
    assert found == [
        ("invalid_values", "10.0.0.1", "sys.cpu", 2),
        ("r", "agent@10.0.0.2", "sys.mem", 1),
        ("r", "fd00::1", "web.hits", 1),
    ]
