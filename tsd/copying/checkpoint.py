"""How far a copy has come, in a small file: what a later run goes on from."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tsd.state import write_whole


class Mark(NamedTuple):
    """How far a table is copied."""

    last: bytes  # the row that was copied last; if the target has it no more, it is not the target that was
    next_start: bytes | None  # None: all rows are copied


class Checkpoint:
    """The place in each table up to which everything was copied, read back and synced."""

    def __init__(self, path: Path, source: str, target: str) -> None:
        """The checkpoint in `path` if it is of a copy from `source` to `target`, else a new one."""
        self.path = path
        self._between = {"source": source, "target": target}
        self._marks: dict[str, tuple[str, str | None]] = {}
        found = _read(path)
        if all(found.get(key) == value for key, value in self._between.items()):
            self._marks = found.get("marks", {})

    def mark(self, table: str) -> Mark | None:
        """How far a table is; None where nothing is known."""
        if table not in self._marks:
            return None
        last, next_start = self._marks[table]
        return Mark(bytes.fromhex(last), None if next_start is None else bytes.fromhex(next_start))

    def save(self, table: str, mark: Mark) -> None:
        """Take note of how far a table is, on disk."""
        self._marks[table] = (mark.last.hex(), None if mark.next_start is None else mark.next_start.hex())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps({**self._between, "marks": self._marks}, indent=1).encode())

    def remove(self) -> None:
        """The copy is complete: the next one looks at everything again."""
        self._marks.clear()
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
