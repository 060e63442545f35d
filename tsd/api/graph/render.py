"""A picture → PNG or SVG, by matplotlib without a display. Texts are drawn as they are, never as formulas."""

import io
import math
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from matplotlib import dates, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from tsd.graphs.picture import Axis, Curve, Picture
from tsd.graphs.smoothing import smoothed

_dates: Any = dates  # without types
_DOTS_PER_INCH = 100
_DAY_S = 86_400
_MAX_KEY = 40  # curves that a key names
_LOOKS: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.2},
    "linespoint": {"linewidth": 1.0, "marker": "+", "markersize": 4},
    "points": {"linestyle": "none", "marker": "+", "markersize": 5},
    "circles": {"linestyle": "none", "marker": "o", "markersize": 4, "fillstyle": "none"},
    "dots": {"linestyle": "none", "marker": ",", "markersize": 1},
    "filled": {"linewidth": 1.0},
}
_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: " ", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}


def draw(picture: Picture) -> bytes:
    """The file."""
    with rc_context(
        {"svg.hashsalt": "tsd", "svg.fonttype": "none", "text.parse_math": False, "axes.formatter.use_mathtext": False}
    ):
        figure = Figure(
            figsize=(picture.width / _DOTS_PER_INCH, picture.height / _DOTS_PER_INCH),
            dpi=_DOTS_PER_INCH,
            facecolor=picture.background,
            layout="tight",
        )
        canvas = FigureCanvasSVG(figure) if picture.kind == "svg" else FigureCanvasAgg(figure)
        _fill(figure, picture)
        file = io.BytesIO()
        # Without a date: the same data is the same file.
        canvas.print_figure(file, format=picture.kind, facecolor=picture.background, metadata=_METADATA[picture.kind])
        return file.getvalue()


_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def _fill(figure: Figure, picture: Picture) -> None:
    left = figure.add_subplot()
    _dress(left, picture.left, picture)
    zone = ZoneInfo(picture.zone)
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
        _dress(right, picture.right, picture)
    lines = []
    for number, curve in enumerate(picture.curves):
        lines.append(_plot(right if curve.second and right else left, curve, picture, f"C{number % 10}"))
    for axes, axis in ((left, picture.left), (right, picture.right)):
        if axes is not None and (axis.low is not None or axis.high is not None):
            axes.set_ylim(axis.low, axis.high)
    if picture.has_key and 0 < len(lines) <= _MAX_KEY:
        _add_key(left, lines, picture)


def _plot(axes: Axes, curve: Curve, picture: Picture, color: str) -> Any:
    times, values = np.frombuffer(curve.times), np.frombuffer(curve.values)
    times, values = smoothed(picture.smooth, times, values)
    days = times / _DAY_S
    (line,) = axes.plot(days, values, color=color, **_LOOKS[picture.style])
    if picture.style == "filled":
        axes.fill_between(days, values, color=color, alpha=0.3)
    return line


def _dress(axes: Axes, axis: Axis, picture: Picture) -> None:
    """Colours, label, scale and numbers of one axis of values."""
    axes.set_facecolor(picture.background)
    for spine in axes.spines.values():
        spine.set_color(picture.foreground)
    axes.tick_params(colors=picture.foreground)
    if axis.label:
        _plain(axes.set_ylabel(axis.label, color=picture.foreground))
    if axis.is_log:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_minor_formatter(FuncFormatter(number_writer(axis.format or "%g")))
    if axis.format or axis.is_log:
        axes.yaxis.set_major_formatter(FuncFormatter(number_writer(axis.format or "%g")))


def number_writer(form: str) -> Callable[[float, int | None], str]:
    """Numbers by one of gnuplot's formats: C's, and `%s %c` for a number below 1000 and its prefix.

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


def _add_key(axes: Axes, lines: Sequence[Any], picture: Picture) -> None:
    words = set(picture.key)
    across = "left" if "left" in words else "center" if "center" in words else "right"
    up = "lower" if "bottom" in words else "upper"
    where: dict[str, Any] = {"loc": f"{up} {across}"}
    if words & {"out", "outside"}:
        where = {
            "loc": "upper left",
            "bbox_to_anchor": (1.12 if any(curve.second for curve in picture.curves) else 1.02, 1.0),
            "borderaxespad": 0,
        }
    key = axes.legend(
        lines,
        [" " + curve.label for curve in picture.curves],  # what begins with _ would be left out
        frameon="box" in words,
        ncols=min(len(lines), 4) if words & {"horiz", "horizontal"} else 1,
        fontsize="small",
        labelcolor=picture.foreground,
        **where,
    )
    for text in key.get_texts():
        _plain(text)


def _plain(text: Text) -> None:
    """A `$` in a text is one."""
    text.set_parse_math(False)
