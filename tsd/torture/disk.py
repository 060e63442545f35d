"""A disk that can be filled without harm to anybody: a small file system in memory where one may be mounted, else a
bound on the daemon's files."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_BYTES = 48 << 20
PART = bytes(1 << 16)
LEAST_BYTES = 256 << 10  # that the largest file may have: the journal still fits, RocksDB's files soon do not


class Disk:
    """What a state folder is on. Fill it and free it."""

    def __init__(self, folder: Path, *, small: bool) -> None:
        self.folder = folder
        self.small = small  # a file system of its own

    def fill(self) -> None:
        """Take all the room there is."""
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(PART)

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        assert self.small  # never somebody's disk
        return self.folder / "ballast"


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A Disk at `folder`, which is made: a file system of its own if this process may mount one."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        small = subprocess.run(mounting, check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError:  # there is no such program
        small = False
    try:
        yield Disk(folder, small=small)
    finally:
        if small:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607
