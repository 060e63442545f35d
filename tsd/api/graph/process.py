"""Pictures drawn in a separate process, and a cache of them.

The process gets numbers and texts on its standard input, without a shell or a template. Its time, its memory and the
size of the picture are limited.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from cachetools import LRUCache

from tsd.api.graph.picture import Picture
from tsd.errors import Refused

TIMEOUT_S = 40
MAX_BYTES = 32 << 20
MAX_ERROR = 500  # characters


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_can_draw() -> None:
    """Raise Refused unless matplotlib is installed."""
    if not can_draw():
        raise Refused(501, "Graphs need matplotlib, which is not installed here: pip install 'tsd-daemon[graph]'")


async def draw_picture(picture: Picture, fonts: Path) -> bytes:
    """Return the PNG or SVG. `fonts` is a folder for matplotlib's font list. Raise Refused."""
    check_can_draw()
    with trio.move_on_after(TIMEOUT_S):
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "tsd.api.graph"],
            stdin=msgspec.msgpack.encode(picture),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=_environment(fonts),
        )
        if done.returncode or len(done.stdout) > MAX_BYTES:
            errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Refused(
                500, "The graph could not be drawn", errors[-1][:MAX_ERROR] if errors else f"exit {done.returncode}"
            )
        return bytes(done.stdout)
    raise Refused(500, f"The graph was not drawn within {TIMEOUT_S} s")


def _environment(fonts: Path) -> dict[str, str]:
    """Return the environment of the process: of the daemon's only the paths, the locale and the time zone."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    root = str(Path(__file__).parents[3])
    return kept | {"MPLBACKEND": "agg", "MPLCONFIGDIR": str(fonts), "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}


class DrawnPicture(NamedTuple):
    """A picture and its summary."""

    file: bytes
    summary: dict[str, object]  # the answer of /q?json
    drawn_ms: int
    max_age_s: int


class PictureCache:
    """The most recently used pictures, limited in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._pictures: LRUCache[str, DrawnPicture] = LRUCache(limit_bytes, getsizeof=lambda drawn: len(drawn.file))

    @property
    def bytes(self) -> int:
        """Return the size of the cached pictures."""
        return int(self._pictures.currsize)

    def get(self, key: str, now_ms: int) -> DrawnPicture | None:
        """Return a picture that has not expired."""
        found = self._pictures.get(key)
        if found is None:
            return None
        if not found.drawn_ms <= now_ms <= found.drawn_ms + found.max_age_s * 1000:
            del self._pictures[key]
            return None
        return found

    def put(self, key: str, drawn: DrawnPicture) -> None:
        """Cache a picture, and remove the least recently used ones above the limit."""
        self._pictures.pop(key, None)
        if drawn.max_age_s > 0 and len(drawn.file) <= self._pictures.maxsize:
            self._pictures[key] = drawn
