"""A picture → PNG or SVG, by matplotlib without a display; and gnuplot's smoothing of curves.

Texts are drawn literally, never as formulas.
"""

import io
import math
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from dateutil.tz import tzlocal
from matplotlib import dates, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from tsd.api.graph.picture import Axis, Curve, Picture
from tsd.codec.points import Float64

SAMPLES = 1000  # points of a computed curve
KNOTS = 1000  # input points of a computed curve: of more points, neighbours are averaged
_STIFFNESS = 10.0  # of acsplines: weight of curvature relative to the distance from the points
_Curve = tuple[Float64, Float64]


def smoothed(kind: str, times: Float64, values: Float64) -> _Curve:
    """Return a curve for points with ascending times."""
    smooth = _KINDS.get(kind)
    if smooth is None or not len(times):
        return times, values
    times, values = smooth_same(times, values, mean=kind != "frequency")
    return smooth(times, values) if len(times) > 2 else (times, values)


def smooth_same(times: Float64, values: Float64, *, mean: bool) -> _Curve:
    """Merge points of one time: their mean, or their sum."""
    unique, place = np.unique(times, return_inverse=True)
    total: Float64 = np.bincount(place, weights=values, minlength=len(unique)).astype(np.float64)
    if mean:
        total = total / np.bincount(place, minlength=len(unique))
    return unique, total


def natural_spline(times: Float64, values: Float64) -> _Curve:
    """Return the natural cubic spline through all points."""
    times, values = _fewer(times, values)
    step, slope = np.diff(times), np.diff(values) / np.diff(times)
    count = len(times)
    matrix = np.zeros((count, count))
    inner = np.arange(1, count - 1)
    matrix[0, 0] = matrix[-1, -1] = 1
    matrix[inner, inner - 1], matrix[inner, inner], matrix[inner, inner + 1] = (
        step[:-1],
        2 * (step[:-1] + step[1:]),
        step[1:],
    )
    bend = np.linalg.solve(matrix, np.concatenate(([0], 6 * np.diff(slope), [0])))
    at = np.linspace(times[0], times[-1], SAMPLES)
    left = np.clip(np.searchsorted(times, at, "right") - 1, 0, count - 2)
    x, h = at - times[left], step[left]
    low, high = bend[left], bend[left + 1]
    return at, values[left] + x * (slope[left] - h * (2 * low + high) / 6) + x**2 * low / 2 + x**3 * (high - low) / (
        6 * h
    )


def smoothing_spline(times: Float64, values: Float64) -> _Curve:
    """Return a smoothing spline near the points."""
    times, values = _fewer(times, values)
    second = np.diff(np.eye(len(times)), 2, axis=0)
    near: Float64 = np.linalg.solve(np.eye(len(times)) + _STIFFNESS * second.T @ second, values).astype(np.float64)
    return natural_spline(times, near)


def bezier(times: Float64, values: Float64) -> _Curve:
    """Return the Bézier curve of all points, which passes through the first and the last one."""
    times, values = _fewer(times, values)
    degree = len(times) - 1
    index = np.arange(degree + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, degree + 1)))))
    ways = factorials[degree] - factorials - factorials[::-1]
    at = np.linspace(0, 1, SAMPLES)[1:-1, None]
    weights = np.exp(ways + index * np.log(at) + (degree - index) * np.log1p(-at))
    ends = ((times[:1], times[-1:]), (values[:1], values[-1:]))
    x, y = (
        np.concatenate((low, weights @ all_, high)) for (low, high), all_ in zip(ends, (times, values), strict=True)
    )
    return x, y


def _fewer(times: Float64, values: Float64) -> _Curve:
    """Average neighbouring points, to at most KNOTS points."""
    if len(times) <= KNOTS:
        return times, values
    place = np.arange(len(times)) * KNOTS // len(times)
    count = np.bincount(place)
    return np.bincount(place, weights=times) / count, np.bincount(place, weights=values) / count


_KINDS: dict[str, Callable[[Float64, Float64], _Curve]] = {
    "unique": lambda times, values: (times, values),
    "frequency": lambda times, values: (times, values),
    "csplines": natural_spline,
    "acsplines": smoothing_spline,
    "bezier": bezier,
    "sbezier": bezier,
}


_dates: Any = dates  # matplotlib.dates has no types
_DOTS_PER_INCH = 100
_DAY_S = 86_400
_KEY_SHARE = 0.35  # most of a picture's height, or width, that the key takes
_KEY_ROW, _KEY_LETTER, _KEY_SAMPLE = 20, 7, 65  # pixels of a key's row, of a letter, of a line's sample with its gaps
_DENSE = 8  # pixels a point below which a curve has no markers
_CROWDED = 2  # pixels a point of all curves below which none has markers
_LIGHT = 0.15  # opacity of a fill
_LARGEST = 1e300  # absolute value: matplotlib computes with differences and powers of ten of values
_ALL_MULTIPLES, _TWO_MULTIPLES = 300, 60  # pixels of a power of ten above which 2 to 9, or 2 and 5, have labels
_LINE_STYLES: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.2},
    "linespoint": {"linewidth": 1.0, "marker": "+", "markersize": 4},
    "points": {"linestyle": "none", "marker": "+", "markersize": 5},
    "circles": {"linestyle": "none", "marker": "o", "markersize": 4, "fillstyle": "none"},
    "dots": {"linestyle": "none", "marker": ",", "markersize": 1},
    "filled": {"linewidth": 1.0},
}
# 20 colours, each at least 0.13 from any other in the OKLab colour space, readable on white and on black.
COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#694b00", "#00b4ff", "#f00096", "#c3c300", "#5a2da5",
    "#a5c3c3", "#ff87c3", "#96875a", "#0000ff", "#00e100", "#960069", "#b4a5ff", "#ff00ff", "#8700ff", "#b400c3",
)  # fmt: skip
_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: " ", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}


def draw(picture: Picture) -> bytes:
    """Return the PNG or SVG of a picture."""
    with rc_context(
        {"svg.hashsalt": "tsd", "svg.fonttype": "none", "text.parse_math": False, "axes.formatter.use_mathtext": False}
    ):
        figure = Figure(
            figsize=(picture.width / _DOTS_PER_INCH, picture.height / _DOTS_PER_INCH),
            dpi=_DOTS_PER_INCH,
            facecolor=picture.background,
            layout="constrained",
        )
        canvas = FigureCanvasSVG(figure) if picture.kind == "svg" else FigureCanvasAgg(figure)
        _fill(figure, picture)
        file = io.BytesIO()
        # Without a date, the same data gives the same file.
        canvas.print_figure(file, format=picture.kind, facecolor=picture.background, metadata=_METADATA[picture.kind])
        return file.getvalue()


_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def _fill(figure: Figure, picture: Picture) -> None:
    left = figure.add_subplot()
    _style_axis(left, picture.left, picture)
    zone = ZoneInfo(picture.zone) if picture.zone else tzlocal()
    left.set_xlim(picture.start_s / _DAY_S, picture.end_s / _DAY_S)
    locator = _dates.AutoDateLocator(tz=zone)
    left.xaxis.set_major_locator(locator)
    left.xaxis.set_major_formatter(_time_formatter(locator, zone, picture.time_format))
    left.grid(visible=True, color=picture.foreground, alpha=0.15)
    if picture.title:
        _plain(left.set_title(picture.title, color=picture.foreground))
    right = None
    if any(curve.second for curve in picture.curves):
        right = left.twinx()
        _style_axis(right, picture.right, picture)
    lines = []
    is_crowded = sum(np.frombuffer(curve.times).size for curve in picture.curves) * _CROWDED > picture.width
    for number, curve in enumerate(picture.curves):
        color = COLOURS[number % len(COLOURS)]
        lines.append(_plot(right if curve.second and right else left, curve, picture, color, is_crowded=is_crowded))
    for axes, axis in ((left, picture.left), (right, picture.right)):
        if axes is not None and (axis.low is not None or axis.high is not None):
            axes.set_ylim(*(None if bound is None else float(_drawable(bound)) for bound in (axis.low, axis.high)))
        if axes is not None and axis.is_log:
            _label_between_decades(axes, axis, picture)
    if picture.has_key and lines:
        _add_key(figure, lines, picture)


def _plot(axes: Axes, curve: Curve, picture: Picture, color: str, *, is_crowded: bool) -> Any:
    times, values = np.frombuffer(curve.times), np.frombuffer(curve.values)
    times, values = smoothed(picture.smooth, times, _drawable(values))
    days = times / _DAY_S
    style = _LINE_STYLES[picture.style]
    if picture.style == "linespoint" and (is_crowded or len(days) * _DENSE > picture.width):
        style = _LINE_STYLES["line"]
    (line,) = axes.plot(days, values, color=color, **style)
    if picture.style == "filled":
        axes.fill_between(days, values, color=color, alpha=_LIGHT, linewidth=0)
    return line


def _drawable(values: Float64 | float) -> Float64:
    """Return values, or one, that matplotlib can draw: neither too large nor too close to 0."""
    sizes = np.clip(np.abs(values), 1 / _LARGEST, _LARGEST)
    return np.where(values == 0, 0.0, np.copysign(sizes, values))


def _style_axis(axes: Axes, axis: Axis, picture: Picture) -> None:
    """Set colours, label, scale and number format of a value axis."""
    axes.set_facecolor(picture.background)
    for spine in axes.spines.values():
        spine.set_color(picture.foreground)
    axes.tick_params(colors=picture.foreground)
    if axis.label:
        _plain(axes.set_ylabel(axis.label, color=picture.foreground))
    if axis.is_log:
        axes.set_yscale("log", nonpositive="mask")
    if axis.format or axis.is_log:
        axes.yaxis.set_major_formatter(FuncFormatter(number_writer(axis.format or "%g")))


def _label_between_decades(axes: Axes, axis: Axis, picture: Picture) -> None:
    """Label as many multiples of each power of ten as have room: 2 to 9, or 2 and 5, or none."""
    low, high = axes.get_ylim()
    decade = picture.height / max(math.log10(high / low), 0.1)  # pixels
    shown: Sequence[int] = range(2, 10) if decade > _ALL_MULTIPLES else (2, 5) if decade > _TWO_MULTIPLES else ()
    write = number_writer(axis.format or "%g")

    def label(value: float, position: int | None) -> str:
        return write(value, position) if round(value / 10 ** math.floor(math.log10(value))) in shown else ""

    axes.yaxis.set_minor_formatter(FuncFormatter(label))
    if shown and axis is picture.left:
        axes.grid(visible=True, which="minor", axis="y", color=picture.foreground, alpha=_LIGHT)


def number_writer(form: str) -> Callable[[float, int | None], str]:
    """Return a function that formats numbers by a gnuplot format: C's, and `%s %c` for a number below 1000 and its SI
    prefix.

    >>> number_writer("%.1s %cB")(1_500_000, None)
    '1.5 MB'
    """

    def write(value: float, _: int | None) -> str:
        power = 0
        shown = form
        if "%c" in form:
            power = max(-3, min(6, math.floor(math.log10(abs(value)) / 3))) if value else 0
            shown = form.replace("%c", _PREFIXES[power])
        start = shown.find("%")
        end = next((i for i in range(start + 1, len(shown)) if shown[i] in "sd%"), -1) if start >= 0 else -1
        if end > 0 and shown[end] == "s":
            shown = f"{shown[:end]}f{shown[end + 1 :]}"
        scaled = value / 1000.0**power
        return shown % scaled if start >= 0 and shown.replace("%%", "").count("%") else shown.replace("%%", "%")

    return write


def _time_formatter(locator: Any, zone: tzinfo, form: str) -> Any:
    return _dates.DateFormatter(form, tz=zone) if form else _dates.ConciseDateFormatter(locator, tz=zone)


def _add_key(figure: Figure, lines: Sequence[Any], picture: Picture) -> None:
    """Add the key outside the axes, so that it covers no curve: below, above or at the right of them.

    Of more curves than fit, the first are named, and a last entry says how many follow.
    """
    words = set(picture.key)
    at_right = bool(words & {"out", "outside"}) and not words & {"bottom", "horiz", "horizontal"}
    labels = [" " + curve.label for curve in picture.curves]  # matplotlib omits labels that start with _
    widest = _KEY_SAMPLE + _KEY_LETTER * max(map(len, labels))
    if at_right and widest <= _KEY_SHARE * picture.width:
        columns, rows = 1, picture.height / _KEY_ROW
        where: Any = f"outside right {'lower' if 'bottom' in words else 'upper'}"
    else:
        columns, rows = max(1, int(picture.width / widest)), _KEY_SHARE * picture.height / _KEY_ROW
        across = "left" if "left" in words else "right" if "right" in words else "center"
        where = f"outside {'upper' if 'top' in words else 'lower'} {across}"
    room = max(2, int(rows) * columns)
    if len(lines) > room:
        labels = [*labels[: room - 1], f" and {len(lines) - room + 1:,} more"]
        lines = [*lines[: room - 1], Line2D([], [], linestyle="none")]
    key = figure.legend(
        lines,
        labels,
        loc=where,
        frameon="box" in words,
        ncols=min(len(lines), columns),
        fontsize="small",
        labelcolor=picture.foreground,
    )
    for text in key.get_texts():
        _plain(text)


def _plain(text: Text) -> None:
    """Draw `$` in a text literally."""
    text.set_parse_math(False)
