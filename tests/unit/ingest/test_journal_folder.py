"""The journal's folder: its owner, and that no lines are forgotten in another folder."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tsd.config.state_dir import lock_state
from tsd.errors import DaemonRuns, TsdError
from tsd.ingest.journal.folder import Conflict, JournalConflict, adopted, held_journal, used_journal
from tsd.ingest.journal.segment import header

SEGMENT = "0000000000000003.journal"


class Places(NamedTuple):
    """State folders and journals of a test."""

    state: Path
    other_state: Path
    journal: Path
    other_journal: Path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(*(tmp_path / name for name in Places._fields))


@contextmanager
def both(state: Path, journal: Path) -> Iterator[None]:
    with lock_state(state), held_journal(journal, state):
        yield


def refused(state: Path, journal: Path) -> tuple[Conflict, Path]:
    """Return why a daemon does not start there, and the folder that is named."""
    with pytest.raises(JournalConflict) as caught, both(state, journal):
        raise AssertionError("it is used")
    assert str(caught.value.folder) in str(caught.value)
    return caught.value.conflict, caught.value.folder


def leave_lines(state: Path, journal: Path) -> Path:
    """Return a segment as a daemon leaves it that was killed or could not write all points."""
    with both(state, journal):
        (journal / SEGMENT).write_bytes(b"lines")
    return journal / SEGMENT


def test_owner_files_exist_while_the_journal_is_used(places: Places) -> None:
    with both(places.state, places.journal):
        identity = (places.state / "id").read_text()
        assert len(identity) == 33
        assert (places.journal / "owner").read_text() == f"{identity}{places.state}"
        assert (places.journal / "journal.lock").read_text() == f"{os.getpid()}\n"
        assert (places.state / "journal-path").read_text() == str(places.journal)
    assert not (places.state / "journal-path").exists()
    with both(places.state, places.journal):
        assert (places.state / "id").read_text() == identity
    with both(places.other_state, places.other_journal):
        assert (places.other_state / "id").read_text() != identity


def test_second_state_folder_is_refused_at_the_same_time(places: Places) -> None:
    with (
        both(places.state, places.journal),
        pytest.raises(DaemonRuns, match=rf"{places.journal}\b.*\b{os.getpid()}\b"),
        both(places.other_state, places.journal),
    ):
        raise AssertionError("two have it")


def test_second_state_folder_is_refused_later(places: Places) -> None:
    segment = leave_lines(places.state, places.journal)
    for _ in range(2):
        assert refused(places.other_state, places.journal) == (Conflict.OTHER_OWNER, places.journal)
    assert segment.read_bytes() == b"lines"
    (places.journal / "owner").unlink()
    with both(places.other_state, places.journal):
        segment.unlink()
    assert refused(places.state, places.journal) == (Conflict.OTHER_OWNER, places.journal)


def test_removing_the_owner_file_adopts_segments(places: Places) -> None:
    segment = leave_lines(places.state, places.journal)
    theirs = (places.state / "id").read_text().strip()
    segment.write_bytes(header(100, theirs))
    (places.journal / "owner").unlink()
    for _ in range(2):  # also where the first start was cut off
        with both(places.other_state, places.journal):
            assert adopted(places.journal) == {theirs}
    with both(places.other_state, places.journal):
        segment.unlink()
    assert adopted(places.journal) == frozenset()


def test_renamed_owner_file_adopts_segments_without_header(places: Places) -> None:
    leave_lines(places.state, places.journal)  # without a header at all
    theirs = (places.state / "id").read_text().strip()
    (places.journal / "owner").rename(places.journal / "owner.was")
    with both(places.other_state, places.journal):
        assert adopted(places.journal) == {theirs}


@pytest.mark.parametrize("text", ["", "no identity\n/var/lib/tsd"])
def test_damaged_renamed_owner_file_adopts_nothing(places: Places, text: str) -> None:
    leave_lines(places.state, places.journal)
    (places.journal / "owner").rename(places.journal / "owner.was").write_text(text)
    with both(places.other_state, places.journal):
        assert adopted(places.journal) == frozenset()


def test_foreign_segment_alone_adopts_nothing(places: Places) -> None:
    segment = leave_lines(places.state, places.journal)
    segment.write_bytes(header(100, "f" * 32))
    with both(places.state, places.journal):
        assert adopted(places.journal) == frozenset()


def test_invalid_identity_is_refused(places: Places) -> None:
    places.state.mkdir()
    (places.state / "id").write_text("mine\n")
    with pytest.raises(JournalConflict, match=f"{places.state}/id") as caught, both(places.state, places.journal):
        raise AssertionError("it is used")
    assert caught.value.conflict is Conflict.INVALID_IDENTITY


def test_identity_that_cannot_be_read_is_not_replaced(places: Places) -> None:
    """Regression: a new one was drawn, which is not that of the journal's lines."""
    places.state.mkdir()
    (places.state / "id").symlink_to("id")  # as an error of the disk
    with pytest.raises(TsdError, match=f"{places.state}/id"), both(places.state, places.journal):
        raise AssertionError("it is used")
    assert (places.state / "id").is_symlink()


def test_error_in_the_body_releases_the_journal(places: Places) -> None:
    with pytest.raises(OSError, match="of the body's"), both(places.state, places.journal):
        raise OSError("of the body's")
    with both(places.state, places.journal):
        pass


def test_changed_path_is_refused_while_old_lines_wait(places: Places) -> None:
    segment = leave_lines(places.state, places.journal)
    for _ in range(2):
        assert refused(places.state, places.other_journal) == (Conflict.LINES_WAIT, places.journal)
    assert not places.other_journal.exists()
    with both(places.state, places.journal):
        segment.unlink()
    with both(places.state, places.other_journal):
        pass


def test_changed_path_is_accepted_if_no_lines_wait(places: Places) -> None:
    leave_lines(places.state, places.journal).unlink()
    (places.journal / "copy.journal").touch()
    with both(places.state, places.other_journal):
        pass
    shutil.rmtree(places.other_journal)
    with both(places.state, places.journal):
        pass


@pytest.mark.parametrize("moved", [False, True])
def test_missing_journal_after_a_crash_is_refused(places: Places, moved: bool) -> None:
    leave_lines(places.state, places.journal)
    away = places.journal.rename(places.journal.with_name("away"))
    places.journal.mkdir()
    known = places.state / "journal-path"
    assert refused(places.state, places.other_journal if moved else places.journal) == (
        Conflict.MISSING,
        places.journal,
    )
    places.journal.rmdir()
    away.rename(places.journal)
    with both(places.state, places.journal):
        assert (places.journal / SEGMENT).exists()
    known.unlink()
    with both(places.state, places.other_journal):
        pass


def test_used_journal_is_where_lines_may_wait(places: Places) -> None:
    assert used_journal(places.other_journal, places.state) == places.other_journal
    segment = leave_lines(places.state, places.journal)
    assert used_journal(places.other_journal, places.state) == places.journal
    away = places.journal.rename(places.journal.with_name("away"))
    with pytest.raises(JournalConflict) as caught:
        used_journal(places.other_journal, places.state)
    assert caught.value.conflict is Conflict.MISSING
    away.rename(places.journal)
    with both(places.state, places.journal):
        segment.unlink()
        assert used_journal(places.other_journal, places.state) == places.journal
    assert used_journal(places.other_journal, places.state) == places.other_journal


def test_used_journal_is_not_that_of_another_daemon(places: Places) -> None:
    leave_lines(places.state, places.journal)
    (places.journal / "owner").write_text("0" * 32 + "\n/elsewhere")
    assert used_journal(places.other_journal, places.state) == places.other_journal


def test_state_folder_with_its_journal_can_be_moved_or_copied(places: Places) -> None:
    leave_lines(places.state, places.state / "journal")
    shutil.copytree(places.state, places.other_state)
    with both(places.other_state, places.other_state / "journal"):
        assert (places.other_state / "journal" / "owner").read_text().endswith(f"\n{places.other_state}")
    shutil.rmtree(places.state)
    places.other_state.rename(places.state)
    with both(places.state, places.state / "journal"):
        assert (places.state / "journal" / SEGMENT).exists()


def test_symbolic_link_to_the_journal_is_the_same_folder(places: Places) -> None:
    leave_lines(places.state, places.journal)
    places.other_journal.symlink_to(places.journal)
    with both(places.state, places.other_journal):
        assert (places.other_journal / SEGMENT).exists()


def test_state_folder_can_be_the_journal_folder(places: Places) -> None:
    for _ in range(2):
        leave_lines(places.state, places.state)


def test_empty_files_of_an_interrupted_start_are_written_again(places: Places) -> None:
    places.state.mkdir()
    places.journal.mkdir()
    for path in (places.state / "id", places.state / "journal-path", places.journal / "owner"):
        path.touch()
    leave_lines(places.state, places.journal)
    assert (places.journal / "owner").read_text() == (places.state / "id").read_text() + str(places.state)


def test_unusable_folder_is_named_with_the_reason(places: Places, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = {"/proc/x": errno.ENOENT, f"{tmp_path}/file": errno.EEXIST, "/proc": errno.ENOENT}
    for folder, reason in wanted.items():
        with (
            pytest.raises(TsdError, match=rf"{folder}\b.*{os.strerror(reason)}") as caught,
            both(places.state, Path(folder)),
        ):
            raise AssertionError("it is used")
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == reason
