"""Pictures from a process of their own, which gets numbers and texts on its standard input and can do no harm: neither
a shell nor a template is anywhere, and time, memory and the picture's size are bounded."""

import importlib.util
import os
import sys
from pathlib import Path

import msgspec
import trio

from tsd.errors import Refused
from tsd.graphs.picture import Picture

TIMEOUT_S = 40
MAX_BYTES = 32 << 20
_SAID = 500  # characters of what it complained of


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_can_draw() -> None:
    """Raise Refused where there is nothing to draw with."""
    if not can_draw():
        raise Refused(501, "Graphs need matplotlib, which is not installed here: pip install 'tsd[graph]'")


async def drawn(picture: Picture, fonts: Path) -> bytes:
    """The PNG or SVG; `fonts` is a folder where matplotlib keeps its list of fonts. Raises Refused."""
    check_can_draw()
    with trio.move_on_after(TIMEOUT_S):
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "tsd.graphs"],
            stdin=msgspec.msgpack.encode(picture),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=_environment(fonts),
        )
        if done.returncode or len(done.stdout) > MAX_BYTES:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Refused(500, "The graph could not be drawn", said[-1][:_SAID] if said else f"exit {done.returncode}")
        return bytes(done.stdout)
    raise Refused(500, f"The graph was not drawn within {TIMEOUT_S} s")


def _environment(fonts: Path) -> dict[str, str]:
    """Nothing of the daemon's own but where Python finds modules."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    root = str(Path(__file__).parents[2])
    return kept | {"MPLBACKEND": "agg", "MPLCONFIGDIR": str(fonts), "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
