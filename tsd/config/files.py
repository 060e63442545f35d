"""Look for files without taking an error of the disk for their absence.

Path.exists, Path.is_file and Path.is_dir return False for every error since Python 3.14, and Path.glob finds nothing in
a folder that cannot be read since 3.13. A daemon would then start anew in place of what it cannot read.
"""

import os
import stat
from pathlib import Path


def exists(path: Path) -> bool:
    """Return whether there is a file or folder. Raise OSError if that cannot be found out."""
    return status(path) is not None


def is_file(path: Path) -> bool:
    """Return whether a path is that of a regular file, or of a link to one. Raise OSError."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: Path) -> bool:
    """Return whether a path is that of a folder, or of a link to one. Raise OSError."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def status(path: Path) -> os.stat_result | None:
    """Return the status of a file or folder; None if there is none. Raise OSError."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def with_suffix(folder: Path, suffix: str) -> list[Path]:
    """Return what a folder has with a suffix such as ".log", by name; nothing if there is no folder. Raise OSError."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix)
    except (FileNotFoundError, NotADirectoryError):
        return []
