"""Checkpoint of a long job in a JSON file, from which the next run of the same job resumes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tsd.config.files import exists, is_file
from tsd.config.state_dir import FolderKind, folder_errors, lock_folder
from tsd.errors import TsdError

_START = re.compile(rb'\{\s*"job":')
FOLDER = FolderKind("folder of the checkpoint", "--checkpoint")


class Checkpoint:
    """The file of one job. A file of another job, or a damaged one, counts as absent. Any other file is left alone."""

    def __init__(self, path: Path, job: Sequence[str]) -> None:
        """`job` has all arguments that must be the same for a later run to resume."""
        self.path = path
        self._job = list(job)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the file for the block. Raise DaemonRuns if another process has locked it, TsdError if that fails."""
        with lock_folder(self.path.parent, f"{self.path.name}.lock", FOLDER):
            yield

    def load(self) -> dict[str, Any] | None:
        """Return the saved state, None if there is none. Raise TsdError for an error of the disk, and for a file that
        no job has saved, or a device or pipe: the end of this job would delete it."""
        with folder_errors(self.path.parent, FOLDER):
            if exists(self.path) and not is_file(self.path):
                raise TsdError(f"--checkpoint {self.path}: got a folder, device or pipe, wanted a file")
            try:
                text = self.path.read_bytes()
                if text.strip(b"\0") and not _START.match(text):  # zeros: after a crash of the machine
                    raise TsdError(
                        f"--checkpoint {self.path}: got {text[:20]!r}…, wanted no file or one of an earlier run"
                    )
                saved = json.loads(text)
                state: dict[str, Any] = saved["state"]
                return state if saved["job"] == self._job and isinstance(state, dict) else None
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                return None

    def save(self, state: Mapping[str, object]) -> None:
        """Write the state. The file is not synced: a crash of the machine costs no more than repeated work."""
        with folder_errors(self.path.parent, FOLDER):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_name(f"{self.path.name}.new")
            draft.write_text(json.dumps({"job": self._job, "state": state}, indent=1) + "\n", "utf-8")
            draft.replace(self.path)

    def clear(self) -> None:
        """Remove the file: the job is done."""
        with folder_errors(self.path.parent, FOLDER):
            self.path.unlink(missing_ok=True)
