"""Graphs, the page and the journal work without the files of libraries that the Debian package leaves out."""

import glob
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARIES = ("plotly", "fontTools", "PIL", "pillow.libs", "zstandard")
USE = """
import fontTools, PIL, zstandard
from tests.unit.api.test_graph import HOUR, curve, picture
from tsd.api.graph.render import draw
from tsd.api.page.endpoint import PlottingLibrary
from tsd.ingest.journal.frames import FrameMaker, text_of
import msgspec, numpy as np

print(fontTools.__file__, PIL.__file__, zstandard.__file__)
times, values = np.arange(HOUR[0], HOUR[1], 60_000), np.arange(60) * 1.5
for options in ({}, {"svg": ""}):
    empty = picture(title="load", ylabel="x", **options)
    curves = [curve("sys.cpu{host=web01}", times, values, empty, second=False)]
    print(draw(msgspec.structs.replace(empty, curves=curves))[:5])
print(text_of(b"".join(FrameMaker().frame_of([b"put"], 0))))
print(PlottingLibrary.find().path.split("-")[0])
"""


def remove_unneeded(folder: Path) -> None:
    """Remove what the patterns in packaging/deb/unneeded match."""
    for line in (ROOT / "packaging/deb/unneeded").read_text("utf-8").splitlines():
        for name in [] if line.startswith("#") or not line else glob.glob(line, root_dir=folder):
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@pytest.mark.slow
def test_graphs_page_and_journal_need_no_file_that_is_left_out(tmp_path: Path) -> None:
    if not all(map(find_spec, ("matplotlib", "plotly"))):
        pytest.skip("matplotlib or plotly is not installed: pip install '.[graph,web]'")
    spec = find_spec("PIL")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parents[1]
    for name in filter(lambda name: (site / name).exists(), LIBRARIES):
        shutil.copytree(site / name, tmp_path / name, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.pyc"))
    remove_unneeded(tmp_path)
    assert not (tmp_path / "fontTools/subset").exists()
    assert not list((tmp_path / "zstandard").glob("*cffi*"))
    assert os.listdir(tmp_path / "plotly/package_data") == ["plotly.min.js"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "MPLCONFIGDIR": str(tmp_path / "fonts")}
    done = subprocess.run([sys.executable, "-c", USE], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, *drawn, text, found = done.stdout.splitlines()
    assert first.split() == [
        str(tmp_path / "fontTools/__init__.py"),
        str(tmp_path / "PIL/__init__.py"),
        str(tmp_path / "zstandard/__init__.py"),
    ]
    assert drawn == [repr(b"\x89PNG\r"), repr(b"<?xml")]
    assert (text, found) == ("b'put'", "/ui/plotly")
