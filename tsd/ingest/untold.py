"""Damage that a start has found is counted by that start, once it has mended it. One that ends before it is ready has
told nobody, and the next finds nothing damaged: so the counts stand in a file until a start is ready."""

import re
from pathlib import Path

from tsd.ingest.disk import Disk, write_new

_ENTRY = re.compile(r"(\S+) (\d+)\n")


def untold(folder: Path) -> dict[str, int]:
    """Confirmed lines in what was damaged, as far as can be told, by the place of the damage."""
    try:
        text = _file(folder).read_text("latin-1")
    except FileNotFoundError:
        return {}
    return {place: int(lines) for place, lines in _ENTRY.findall(text)}


def note_untold(disk: Disk, folder: Path, found: dict[str, int]) -> None:
    """Add damage that is not mended yet; on disk when this returns. What is noted twice, by a start that was cut off,
    counts once: as what was more, since a part may be mended by then. Raises OSError."""
    before = untold(folder)
    counts = before | {place: max(lines, before.get(place, 0)) for place, lines in found.items() if lines}
    if counts == before:
        return
    draft = folder / "untold.new"
    disk.remove(draft)
    write_new(disk, draft, ["".join(f"{place} {lines}\n" for place, lines in counts.items()).encode("latin-1")])
    disk.rename(draft, _file(folder))
    disk.sync_folder(folder)


def forget_untold(disk: Disk, folder: Path) -> None:
    """It is told. Raises OSError."""
    disk.remove(_file(folder))


def _file(folder: Path) -> Path:
    return folder / "untold"
