"""Graphs: their options, thinning and smoothing of curves, drawn files, and the cache."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tsd.api.graph import process
from tsd.api.graph.picture import Axis, Picture, axis_options, curve, read_picture, thinned
from tsd.api.graph.process import DrawnPicture, PictureCache
from tsd.api.graph.render import draw, smoothed
from tsd.errors import BadQuery, Refused

HOUR = (1356998400000, 1357002000000)


def picture(**params: str) -> Picture:
    return read_picture({name: [value] for name, value in params.items()}, *HOUR)


def test_gnuplot_options_are_parsed() -> None:
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


@pytest.mark.difference(
    "graphs",
    topic="queries",
    theirs="`/q` runs Gnuplot with text of the request",
    ours=(
        "Matplotlib draws in a process without a shell, bounded in time, memory and size (`pip install "
        "'tsd-daemon[graph]'`). Options are checked, `o` is an axis only, and `svg` is a format as well"
    ),
)
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


def test_axis_option_with_a_command_is_refused() -> None:
    with pytest.raises(BadQuery):
        axis_options(["axis x1y2; system('id')"])


@pytest.mark.parametrize(
    ("values", "params"),
    [
        ((1.7e308, -1.7e308, 0), {"smooth": "csplines"}),
        ((5e-324, 0, 0), {"ylog": ""}),
        ((1, 2, 3), {"yrange": "[-1e308:1e309]"}),
    ],
    ids=str,
)
def test_numbers_of_any_size_are_drawn(values: Sequence[float], params: Mapping[str, str]) -> None:
    """Regression: `/q` answered 500."""
    empty = picture(**params)
    times = np.linspace(*HOUR, 3).astype(np.int64)
    found = curve("m", times, np.array(values, np.float64), empty)
    assert draw(msgspec.structs.replace(empty, curves=[found])).startswith(b"\x89PNG")


def test_thinning_keeps_visible_points() -> None:
    times = np.arange(100_000.0)
    values = np.sin(times / 9000)
    values[12_345] = 50
    kept = thinned(times, values, 500)
    assert len(kept) <= 2000
    assert {0, 12_345, 99_999} <= set(kept.tolist())
    assert thinned(times[:50], values[:50], 500).tolist() == list(range(50))


@pytest.mark.parametrize("kind", ["unique", "frequency", "csplines", "acsplines", "bezier", "sbezier"])
def test_smoothed_curve_follows_the_points(kind: str) -> None:
    times = np.array([0.0, 10, 10, 20, 30, 45])
    x, y = smoothed(kind, times, 2 * times + 1)
    if kind == "frequency":
        assert y.tolist() == [1.0, 42.0, 41.0, 61.0, 91.0]
        return
    assert (x[0], x[-1]) == (0, 45)
    assert y == pytest.approx(2 * x + 1, abs=5 if kind == "acsplines" else 1e-6)
    assert len(x) == 5 if kind == "unique" else len(x) > 100


def test_natural_spline_passes_through_its_points() -> None:
    times = np.array([0.0, 111, 333, 555, 999])
    values = np.array([1.0, -2, 5, 5, 0])
    x, y = smoothed("csplines", times, values)
    assert np.interp(times, x, y) == pytest.approx(values, abs=0.01)


def drawn_svg(count: int, points: int, **params: str) -> str:
    """Return the SVG of `count` curves of `points` points."""
    empty = picture(svg="", **params)
    times = np.linspace(*HOUR, points).astype(np.int64)
    curves = [curve(f"m{{host=h{n}}}", times, np.full(points, float(n)), empty) for n in range(count)]
    return draw(msgspec.structs.replace(empty, curves=curves)).decode()


def box(svg: str) -> tuple[float, float, float, float]:
    """Return left, top, width and height of the rectangle that curves are clipped to."""
    found = re.search(r'<clipPath[^>]*>\s*<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', svg)
    assert found is not None
    left, top, width, height = map(float, found.groups())
    return left, top, width, height


@pytest.mark.parametrize("key", ["", "out right top", "top left", "inside bottom right", "horiz box", "center"])
@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.slow), 12, pytest.param(90, marks=pytest.mark.slow)]
)
def test_key_covers_no_curve(key: str, count: int) -> None:
    svg = drawn_svg(count, 5, key=key)
    left, top, width, height = box(svg)
    key_texts = re.findall(r'<text[^>]* x="(.*?)" y="(.*?)"', svg[svg.index('<g id="legend_1">') :])
    assert len(key_texts) > count / 3
    assert not [(x, y) for x, y in key_texts if 0 < float(x) - left < width and 0 < float(y) - top < height]
    assert width * height > 0.3 * (1024 * 0.72) * (768 * 0.72)  # an SVG's unit is 1/72 inch, a pixel 1/100 inch


@pytest.mark.slow
def test_key_names_as_many_curves_as_fit() -> None:
    svg = drawn_svg(20, 5)
    assert all(f"m{{host=h{n}}}" in svg for n in range(20))
    svg = drawn_svg(500, 5)
    named = len(re.findall(r"m\{host=h\d+\}", re.sub(r"<!--.*?-->", "", svg)))
    assert 20 < named < 500
    assert f"{500 - named} more" in svg


@pytest.mark.parametrize(("least", "most", "labels"), [(1, 1e6, 7), (1, 900, 9), (20, 80, 7)])
def test_labels_of_a_log_axis_have_room(least: float, most: float, labels: int) -> None:
    empty = picture(svg="", ylog="", nokey="", wxh="800x400" if most > 80 else "800x800")
    values = np.geomspace(least, most, 50)
    drawn = draw(
        msgspec.structs.replace(empty, curves=[curve("m", np.linspace(*HOUR, 50).astype(np.int64), values, empty)])
    )
    axis = drawn.decode().split('id="matplotlib.axis_2"')[1].split('<g id="patch')[0]
    heights = sorted(float(y) for y in re.findall(r'<text[^>]* y="(.*?)"', axis))
    assert len(heights) >= labels
    assert min(np.diff(heights)) > 8  # an SVG's unit is 1/72 inch, and a label has 10


def test_twenty_curves_have_twenty_colours() -> None:
    svg = drawn_svg(20, 5, style="line")
    curves = re.findall(r'clip-path="[^"]*" style="fill: none; stroke: (#[0-9a-f]{6}); stroke-(?!opacity)', svg)
    assert len(curves) == len(set(curves)) == 20


@pytest.mark.parametrize(("curves", "points", "has_markers"), [(1, 20, True), (1, 1000, False), (20, 70, False)])
def test_only_sparse_curves_have_markers(curves: int, points: int, has_markers: bool) -> None:
    svg = drawn_svg(curves, points, nokey="")
    assert bool(re.search(r'<g clip-path="[^"]*">\s*<use', svg)) is has_markers


@pytest.mark.difference("graphs")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
async def test_picture_is_drawn_in_a_separate_process(tmp_path: Path, kind: str) -> None:
    empty = picture(title="costs $x^2$ </text><script>", smooth="csplines", ylog="", key="out", **{kind: ""})
    times = np.arange(*HOUR, 10_000)
    curves = [curve(f"_m{{host=h{n}}}", times, 2 + np.sin(times / 1e5 + n), empty, second=n == 1) for n in range(3)]
    file = await process.draw_picture(msgspec.structs.replace(empty, curves=curves), tmp_path)
    if kind == "png":
        assert file.startswith(b"\x89PNG")
        assert (int.from_bytes(file[16:20]), int.from_bytes(file[20:24])) == (1024, 768)
    else:
        assert file.startswith(b"<?xml")
        assert b"<script" not in file


@pytest.mark.slow
@pytest.mark.parametrize(("params", "first"), [({}, "21:00"), ({"tz": "America/New_York"}, "16:00")])
async def test_times_are_labelled_in_the_zone_in_which_dates_are_read(
    params: dict[str, str], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: without `tz` dates were read in the zone of the process, and labelled in UTC."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    start_ms = 1_761_418_800_000  # 2025/10/25-21:00 there, six hours before summer time ends
    wanted = read_picture(
        {"svg": [""], **{name: [text] for name, text in params.items()}}, start_ms, start_ms + 43_200_000
    )
    svg = await process.draw_picture(wanted, tmp_path)
    labels = re.findall(r">(\d\d:\d\d)</text>", svg.decode())
    assert labels[0] == first


@pytest.mark.slow
async def test_failed_drawing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="could not be drawn"):
        await process.draw_picture(msgspec.structs.replace(picture(), zone="No/Where"), tmp_path)


def test_cache_is_limited_in_bytes_and_time() -> None:
    cache = PictureCache(100)
    for number in range(5):
        cache.put(str(number), DrawnPicture(bytes(40), {}, drawn_ms=0, max_age_s=10))
    assert cache.bytes == 80
    assert [cache.get(str(number), 10_000) is not None for number in range(5)] == [False, False, False, True, True]
    assert cache.get("4", 10_001) is None
    cache.put("never", DrawnPicture(b"x", {}, 0, 0))
    assert cache.get("never", 0) is None
