"""A small disk in memory, and what fills it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_BYTES = 48 << 20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount an in-memory file system of DISK_BYTES."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> Path:
    """Create a file that uses all remaining space."""
    path = disk / "ballast"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return path
