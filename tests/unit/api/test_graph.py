"""Pictures: their options, what is drawn of many points, and the files that matplotlib makes of them."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tsd.errors import BadQuery, Refused
from tsd.graphs import process
from tsd.graphs.cache import Cache, Drawn
from tsd.graphs.picture import Axis, Picture, axis_options, curve, read_picture, thinned
from tsd.graphs.smoothing import SAMPLES, smoothed

HOUR = (1356998400000, 1357002000000)


def picture(**params: str) -> Picture:
    return read_picture({name: [value] for name, value in params.items()}, *HOUR)


def test_options_are_gnuplots() -> None:
    found = picture(
        wxh="800x400", yrange="[0:]", y2range="[-1.5:1e3]", ylabel="load", ylog="", key="out right top", title="T",
        bgcolor="x102030", fgcolor="#FFFFFF", smooth="csplines", style="lines", yformat="%.1s %cB", svg="",
    )  # fmt: skip
    assert (found.width, found.height, found.kind) == (800, 400, "svg")
    assert found.left == Axis("load", 0.0, None, "%.1s %cB", is_log=True)
    assert found.right == Axis("", -1.5, 1000.0)
    assert (found.background, found.foreground) == ("#102030", "#FFFFFF")
    assert (found.smooth, found.style, found.key, found.has_key) == ("csplines", "line", ["out", "right", "top"], True)
    assert not picture(nokey="").has_key
    assert axis_options(["", "axis x1y2"]) == [False, True]


@pytest.mark.parametrize(
    "params",
    [
        {"wxh": "9x9"}, {"wxh": "99999x100"}, {"wxh": "a"}, {"yrange": "0:1"}, {"yrange": "[`id`:]"},
        {"bgcolor": "red; rm"}, {"key": "out;"}, {"smooth": "no"}, {"style": "no"}, {"yformat": "%n"},
        {"xformat": "%Q"}, {"title": "x" * 201}, {"y2format": "%s %s"},
    ],
    ids=str,
)  # fmt: skip
def test_other_options_are_refused(params: Mapping[str, str]) -> None:
    with pytest.raises(BadQuery):
        picture(**params)


def test_options_of_axes_are_no_commands() -> None:
    with pytest.raises(BadQuery):
        axis_options(["axis x1y2; system('id')"])


def test_of_many_points_those_remain_that_show() -> None:
    times = np.arange(100_000.0)
    values = np.sin(times / 9000)
    values[12_345] = 50
    kept = thinned(times, values, 500)
    assert len(kept) <= 2000
    assert {0, 12_345, 99_999} <= set(kept.tolist())
    assert thinned(times[:50], values[:50], 500).tolist() == list(range(50))


@pytest.mark.parametrize("kind", ["unique", "frequency", "csplines", "acsplines", "bezier", "sbezier"])
def test_smooth_curves_keep_to_the_points(kind: str) -> None:
    times = np.array([0.0, 10, 10, 20, 30, 45])
    x, y = smoothed(kind, times, 2 * times + 1)
    if kind == "frequency":
        assert y.tolist() == [1.0, 42.0, 41.0, 61.0, 91.0]
        return
    assert (x[0], x[-1]) == (0, 45)
    assert y == pytest.approx(2 * x + 1, abs=5 if kind == "acsplines" else 1e-6)
    assert len(x) == (5 if kind == "unique" else SAMPLES)


def test_a_natural_spline_goes_through_its_points() -> None:
    times = np.array([0.0, 111, 333, 555, 999])
    values = np.array([1.0, -2, 5, 5, 0])
    x, y = smoothed("csplines", times, values)
    assert np.interp(times, x, y) == pytest.approx(values, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
async def test_a_picture_is_drawn_in_a_process_of_its_own(tmp_path: Path, kind: str) -> None:
    empty = picture(title="costs $x^2$ </text><script>", smooth="csplines", ylog="", key="out", **{kind: ""})
    times = np.arange(*HOUR, 10_000)
    curves = [curve(f"_m{{host=h{n}}}", times, 2 + np.sin(times / 1e5 + n), empty, second=n == 1) for n in range(3)]
    file = await process.drawn(msgspec.structs.replace(empty, curves=curves), tmp_path)
    if kind == "png":
        assert file.startswith(b"\x89PNG")
        assert (int.from_bytes(file[16:20]), int.from_bytes(file[20:24])) == (1024, 768)
    else:
        assert file.startswith(b"<?xml")
        assert b"<script" not in file


@pytest.mark.slow
async def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="could not be drawn"):
        await process.drawn(msgspec.structs.replace(picture(), zone="No/Where"), tmp_path)


def test_the_cache_is_bounded_in_bytes_and_time() -> None:
    cache = Cache(100)
    for number in range(5):
        cache.keep(str(number), Drawn(bytes(40), {}, made_ms=0, max_age_s=10))
    assert cache.bytes == 80
    assert [cache.find(str(number), 10_000) is not None for number in range(5)] == [False, False, False, True, True]
    assert cache.find("4", 10_001) is None
    cache.keep("never", Drawn(b"x", {}, 0, 0))
    assert cache.find("never", 0) is None
