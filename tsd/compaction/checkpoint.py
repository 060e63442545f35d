"""Where a pass is, in a file: so that one that was ended goes on instead of beginning anew."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tsd.compaction.sweep import Stretch
from tsd.compaction.tally import Tally
from tsd.state import Kind, in_words, locked

CHECKPOINT = Kind("folder of the checkpoint", "--checkpoint")


class Place(NamedTuple):
    """A pass under way."""

    stretch: Stretch
    position: bytes
    tally: Tally


class Checkpoint:
    """The file of one pass. `asked` says what the pass was asked for: another one does not go on with it."""

    def __init__(self, path: Path, asked: list[str]) -> None:
        self._path = path
        self._asked = asked

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else uses the file; raises DaemonRuns where somebody does, TsdError where it cannot be used."""
        with locked(self._path.parent, f"{self._path.name}.lock", CHECKPOINT):
            yield

    def load(self) -> Place | None:
        """Where a pass that asked for the same was ended; None where there is none."""
        with in_words(self._path.parent, CHECKPOINT):
            try:
                saved = json.loads(self._path.read_text("utf-8"))
                return _place(saved) if saved["asked"] == self._asked else None
            except (FileNotFoundError, ValueError, KeyError, TypeError):  # of no use: the pass begins anew
                return None

    def save(self, place: Place) -> None:
        """Note where the pass is. Nothing is synced, neither the note nor what the pass wrote: the disk is the one that
        agents wait for, and a machine that dies costs no more than some rows compacted again, or by the next pass."""
        since_s, until_s, metrics = place.stretch
        saved = {
            "asked": self._asked,
            "stretch": [since_s, until_s, [metric.hex() for metric in metrics]],
            "position": place.position.hex(),
            "tally": vars(place.tally),  # asdict makes other keys of a Counter's
        }
        with in_words(self._path.parent, CHECKPOINT):
            draft = self._path.with_name(f"{self._path.name}.new")
            draft.write_text(json.dumps(saved, indent=1) + "\n", "utf-8")
            draft.replace(self._path)

    def clear(self) -> None:
        """The pass is done."""
        with in_words(self._path.parent, CHECKPOINT):
            self._path.unlink(missing_ok=True)


def _place(saved: Any) -> Place:
    since_s, until_s, metrics = saved["stretch"]
    counts = dict(saved["tally"])
    errors = Counter(dict(counts.pop("errors")))
    for number in (since_s, until_s, *counts.values(), *errors.values()):
        if not isinstance(number, int):
            raise TypeError(f"got {number!r}, wanted a whole number")
    stretch = Stretch(since_s, until_s, tuple(map(bytes.fromhex, metrics)))
    return Place(stretch, bytes.fromhex(saved["position"]), Tally(**counts, errors=errors))
