"""The log of refused lines: what is kept, how much, and what of it outlives a crash, a flood and a full disk."""

import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tsd.access.roles import Principal, Role
from tsd.deadletters.folder import files, mark_unstored, read_entries, read_records
from tsd.deadletters.log import BURST_S, FILES, LEAST_FILE, DeadLetters
from tsd.deadletters.records import LINE_BYTES, LeftOut, Outcome, Refused, Replayed
from tsd.deadletters.selection import Selection, groups
from tsd.doors.clients import Client
from tsd.doors.visitor import Visitor
from tsd.errors import BadLine
from tsd.ingest.source import Refusal

LARGE = 1 << 30


def refusals(count: int, line: bytes = b"put m x", reason: str = "r") -> list[Refusal]:
    return [Refusal(line, BadLine(reason, f"no {number}")) for number in range(count)]


def visitor(address: str = "10.0.0.1", port: int = 7, name: str = "") -> Visitor:
    return Visitor(address, port, Client(address), principal=Principal(name, Role.WRITE))


@asynccontextmanager
async def writing(folder: Path, *, max_bytes: int = 64 << 20, per_second: int = LARGE) -> AsyncIterator[DeadLetters]:
    letters = DeadLetters(
        folder, folder.parent / "refused", max_bytes=max_bytes, per_second=per_second, now_ms=lambda: 1000
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(letters.run)
        yield letters
        nursery.cancel_scope.cancel()


def kept(folder: Path) -> list[Refused]:
    return [record for _, record in read_records(folder) if isinstance(record, Refused)]


def left_out(folder: Path) -> int:
    return sum(sum(one.lines.values()) for _, one in read_records(folder) if isinstance(one, LeftOut))


async def test_a_line_is_kept_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(name="agent"), [Refusal(b'put \xff\x00" x', BadLine("invalid_values", "bad \xe9"))])
        await letters.flush()
        [record] = kept(tmp_path)
    assert record == Refused(1000, "invalid_values", "bad é", "10.0.0.1:7", "agent", 'put ÿ\0" x')
    assert record.bytes == b'put \xff\x00" x'


async def test_a_message_with_half_a_surrogate_pair_ends_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), [Refusal(b"put m x", BadLine("r", "bad \ud800"))])
        letters.note(visitor(), refusals(1))
        await letters.flush()
        assert [record.message for record in kept(tmp_path)] == ["bad ?", "no 0"]


async def test_what_was_noted_when_the_daemon_ends_is_kept(tmp_path: Path) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(3))
    assert len(kept(tmp_path)) == 3
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(2))
    assert len(kept(tmp_path)) == 5
    assert len(files(tmp_path)) == 1


async def test_a_line_that_is_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(1, b"api/put " + b"x" * (LINE_BYTES + 10)))
        await letters.flush()
    [record] = kept(tmp_path)
    assert (len(record.bytes), record.cut) == (LINE_BYTES, 18)


async def test_of_a_flood_a_part_is_kept_and_the_rest_counted_and_others_find_room(tmp_path: Path) -> None:
    async with writing(tmp_path, per_second=10) as letters:
        for _ in range(100):
            letters.note(visitor(), refusals(100))
        letters.note(visitor("10.0.0.2"), refusals(20, reason="other"))
        await letters.flush()
        letters.note(visitor("10.0.0.3"), refusals(1))  # the count is written with it
        await letters.flush()
    records = kept(tmp_path)
    flood = [one for one in records if one.peer.startswith("10.0.0.1:")]
    assert 10 * BURST_S / 2 <= len(flood) < 100
    assert len([one for one in records if one.reason == "other"]) == 20
    assert len(records) + left_out(tmp_path) == 10_000 + 21 == len(records) + letters.statistics().left_out


async def test_the_folder_does_not_grow_beyond_its_bound_and_the_newest_stay(tmp_path: Path) -> None:
    bound = FILES * LEAST_FILE
    async with writing(tmp_path, max_bytes=bound) as letters:
        for number in range(200):
            letters.note(visitor(), refusals(50, b"put %d " % number + b"x" * 200))
            await letters._write_batch()
    sizes = [path.stat().st_size for _, path in files(tmp_path)]
    assert bound / 2 < sum(sizes) <= bound
    assert sum(sizes) == letters.statistics().size
    lines = [record.line for record in kept(tmp_path)]
    assert lines[-1].startswith("put 199 ")
    assert lines == sorted(lines, key=lambda line: int(line.split(" ")[1]))


async def test_nothing_is_kept_where_nothing_is_to_be(tmp_path: Path) -> None:
    async with writing(tmp_path / "none", max_bytes=0) as letters:
        letters.note(visitor(), refusals(3))
        await letters.flush()
        await letters.mark([("1-0", Outcome(True))])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("cut", [1, 5, 60, 150])
async def test_a_record_that_a_crash_cut_off_is_none_and_the_log_goes_on(tmp_path: Path, cut: int) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(3))
    [(_, path)] = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert len(kept(tmp_path)) == (2 if cut < whole.index(b"\n") else 1)
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(2))
    assert len(kept(tmp_path)) == (4 if cut < whole.index(b"\n") else 3)
    assert all(line.startswith(b'{"kind"') for line in path.read_bytes().splitlines())


async def test_bytes_that_are_no_record_are_passed_over(tmp_path: Path) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(3))
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


async def test_a_full_disk_costs_only_what_it_does_not_take(tmp_path: Path, full_disk: None) -> None:
    async with writing(tmp_path) as letters:
        letters.note(visitor(), refusals(3))
        await letters.flush()
        letters.note(visitor(), refusals(100))
        await letters.flush()
        statistics = letters.statistics()
        assert (statistics.kept, statistics.left_out, statistics.failures) == (3, 100, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        letters.note(visitor(), refusals(2))
        await letters.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(kept(tmp_path)) == 5
    assert left_out(tmp_path) == 100


async def test_what_a_defect_keeps_from_the_folder_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(records: object) -> bytes:
        raise ValueError("as the test wants")

    letters = DeadLetters(tmp_path, tmp_path / "refused", max_bytes=64 << 20, per_second=LARGE, now_ms=lambda: 1000)
    with monkeypatch.context() as patch:
        patch.setattr("tsd.deadletters.log.encode_records", defect)
        letters.note(visitor(), refusals(3))
        with pytest.raises(ValueError, match="as the test wants"):
            await letters.run()
    assert (letters.statistics().kept, letters.statistics().left_out) == (0, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(letters.run)  # as the daemon has it run again
        letters.note(visitor(), refusals(2))
        await letters.flush()
        nursery.cancel_scope.cancel()
    assert (len(kept(tmp_path)), left_out(tmp_path)) == (2, 3)
    assert (letters.statistics().kept, letters.statistics().left_out) == (2, 3)


async def test_what_was_sent_again_is_known_by_its_mark(tmp_path: Path) -> None:
    folder, unstored = tmp_path / "rejected", tmp_path / "refused"
    unstored.mkdir()
    (unstored / "00000007.lines").write_bytes(b"# unknown metric: q\nput q 1 2 a=b\n# illegal argument: z\nput z\n")
    async with writing(folder) as letters:
        letters.note(visitor(), refusals(3))
        await letters.flush()
        names = [entry.name for entry in read_entries(folder, unstored)]
        assert names[:2] == ["00000007.lines-20", "00000007.lines-56"]
        await letters.mark([(names[0], Outcome(True)), (names[2], Outcome(True))])
        await letters.mark([(names[3], Outcome(False, "new", "still no"))])
    entries = list(read_entries(folder, unstored))
    assert [entry.name for entry in entries] == names
    assert [entry.taken for entry in entries] == [True, False, True, False, False]
    assert [entry.reason for entry in entries] == ["unknown_metrics", "illegal_arguments", "r", "new", "r"]
    assert entries[3].message == "still no"


async def test_what_was_taken_of_what_the_writer_could_not_store_stays_marked(tmp_path: Path) -> None:
    """The marks stood in the log, whose oldest file leaves: lines were listed as refused again, and sent, for ever."""
    folder, unstored = tmp_path / "rejected", tmp_path / "refused"
    unstored.mkdir()
    path = unstored / "00000007.lines"
    path.write_bytes(b"# unknown metric: q\nput q 1 2 a=b\nput q 2 2 a=b\n")
    names = [entry.name for entry in read_entries(folder, unstored)]
    for max_bytes in (64 << 20, 0):  # whatever is kept of other lines
        async with writing(folder, max_bytes=max_bytes) as letters:
            await letters.mark([(names[0], Outcome(False, "r", "not yet")), (names[1], Outcome(True))])
            await letters.mark([(names[0], Outcome(max_bytes == 0))])
        for _, log in files(folder):
            log.unlink()
        assert [entry.taken for entry in read_entries(folder, unstored)] == [max_bytes == 0, True]
    with next(unstored.glob("*.marks")).open("ab") as marks:
        marks.write(b'{"kind":"repl')  # as a crash leaves it
    async with writing(folder) as letters:
        await letters.mark([(names[0], Outcome(False, "r", "again")), ("00000008.lines-0", Outcome(True))])
    assert [entry.message for entry in read_entries(folder, unstored)] == ["again", "unknown metric: q"]
    path.write_bytes(b"# unknown metric: z\nput z 1 2 a=b\nput z 2 2 a=b\n")  # others, in a file of the same number
    assert [entry.taken for entry in read_entries(folder, unstored)] == [False, False]


async def test_a_file_of_the_writer_that_is_taken_away_meanwhile_keeps_nothing_from_the_others(
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


async def test_a_selection_is_made_by_each_of_its_members(tmp_path: Path) -> None:
    folder = tmp_path / "rejected"
    async with writing(folder) as letters:
        letters.note(visitor("10.0.0.1"), refusals(2, b"put sys.cpu 1 x a=b", "invalid_values"))
        letters.note(visitor("10.0.0.2", name="agent"), refusals(1, b"rollup 1h-sum sys.mem 1 x a=b"))
        letters.note(visitor("fd00::1"), refusals(1, b'api/put {"metric":"web.hits"}'))
    entries = list(read_entries(folder, tmp_path))

    def count(selection: Selection) -> int:
        return sum(map(selection.has, entries))

    assert count(Selection()) == 4
    assert count(Selection(reason="invalid_values")) == 2
    assert count(Selection(source="10.0.0.1")) == count(Selection(source="10.0.0.1:7")) == 2
    assert (
        count(Selection(source="agent"))
        == count(Selection(source="fd00::*"))
        == count(Selection(source="agent@*"))
        == 1
    )
    assert count(Selection(metric="sys.*")) == 3
    assert count(Selection(metric="web.hits")) == 1
    assert count(Selection(since_ms=1001)) == count(Selection(until_ms=1000)) == 0
    assert count(Selection(taken=True)) == 0
    found = [(one.reason, one.source, one.metric, one.lines) for one in groups(entries)]
    assert found == [
        ("invalid_values", "10.0.0.1", "sys.cpu", 2),
        ("r", "agent@10.0.0.2", "sys.mem", 1),
        ("r", "fd00::1", "web.hits", 1),
    ]
