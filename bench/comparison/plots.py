"""Plots of the results, as SVG with searchable text."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.comparison.records import Run
from bench.comparison.tables import AT_A_PACE, DAY, GROW, STEADY, Of, cpu_us, median

WIDTH, HEIGHT = 7.0, 2.6  # inches
SMALL, TITLE = 7, 9  # points
OURS, OTHERS = "#2a6f97", "#a9a9a9"
COLOURS = ("#2a6f97", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#00798c", "#7f7f7f", "#3d3d3d")


def plots(run: Run) -> dict[str, Callable[[Path], None]]:
    """Return a function that writes each plot, by name."""
    return {
        "cpu": lambda file: _saved(_cpu(run), file),
        "loads": lambda file: _saved(_loads(run), file),
        "growth": lambda file: _saved(_growth(run), file),
        "disk": lambda file: _saved(_disk(run), file),
    }


def draw(run: Run, folder: Path) -> list[Path]:
    """Write all plots."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, write in plots(run).items():
        files.append(folder / f"{name}.svg")
        write(files[-1])
    return files


def _saved(figure: Figure, file: Path) -> None:
    # No metadata, so that equal results give equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tsd", "font.size": 8}):
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})


def _axes(columns: int = 1, height: float = HEIGHT) -> tuple[Figure, Sequence[Axes]]:
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=SMALL)
    return figure, list(axes)


def _bars(axes: Axes, run: Run, load: str, of: Of, title: str, digits: int) -> None:
    """Draw a bar with a number for each system."""
    found = [(name, value) for name in run.systems() if (value := median(run.figures(load, name), of)) is not None]
    found.reverse()
    colours = [OURS if name.startswith("tsd") else OTHERS for name, _ in found]
    bars = axes.barh([name for name, _ in found], [value for _, value in found], color=colours)
    axes.bar_label(bars, [f"{value:,.{digits}f}" for _, value in found], padding=2, fontsize=SMALL)
    axes.set_title(title, loc="left", fontsize=TITLE)
    axes.margins(x=0.2)


def _plain(axis: Axis) -> None:
    """Format numbers plainly, at 1, 2 and 5 of each power of ten."""
    if not (axis.axes.patches or axis.axes.lines):
        return  # no results
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if _decades(axis) < 2 else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _decades(axis: Axis) -> float:
    low, high = axis.get_view_interval()
    return math.log10(high / low) if low > 0 else 0.0


def _cpu(run: Run) -> Figure:
    figure, (speed, cpu) = _axes(2)
    _bars(
        speed,
        run,
        STEADY,
        lambda f: f.lines_per_s and f.lines_per_s / 1000,
        "thousand lines/s (more is better)",
        0,
    )
    _bars(cpu, run, STEADY, cpu_us, "CPU µs/line (less is better, log)", 2)
    cpu.tick_params(labelleft=False)
    if cpu.patches:
        cpu.set_xscale("log")
    _plain(cpu.xaxis)
    return figure


def _disk(run: Run) -> Figure:
    figure, (axes,) = _axes(height=HEIGHT * 0.8)
    _bars(axes, run, DAY, lambda f: f.disk_bytes, "bytes/point on disk, compacted (less is better)", 2)
    return figure


def _loads(run: Run) -> Figure:
    """Draw the CPU per line of every load, as a group of bars."""
    loads = [name for name in run.titles if name not in (*AT_A_PACE, GROW)]
    systems = [s for s in run.systems() if sum(bool(run.figures(load, s)) for load in loads) > 2]
    figure, (axes,) = _axes(height=HEIGHT * 1.3)
    width = 0.8 / max(1, len(systems))
    for at, system in enumerate(systems):
        heights = [median(run.figures(load, system), cpu_us) or 0.0 for load in loads]
        places = [place + at * width for place in range(len(loads))]
        axes.bar(places, heights, width, label=system, color=COLOURS[at % len(COLOURS)])
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(loads))], [_folded(run.titles[n]) for n in loads])
    if systems:
        axes.set_yscale("log")
    _plain(axes.yaxis)
    axes.set_title("CPU µs/line including the store (less is better, log scale)", loc="left", fontsize=TITLE)
    if systems:
        figure.legend(frameon=False, ncols=4, loc="outside lower center", fontsize=SMALL)
    return figure


def _folded(title: str) -> str:
    """Break a title into two lines."""
    words = title.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]) + "\n" + " ".join(words[middle:])


def _growth(run: Run) -> Figure:
    figure, (memory, speed) = _axes(2, HEIGHT * 1.2)
    for at, system in enumerate(run.systems()):
        steps = [f for f in run.figures(GROW, system) if f.series is not None]
        if steps:
            series = [f.series or 0 for f in steps]
            style = {"label": system, "color": COLOURS[at % len(COLOURS)], "marker": "o", "markersize": 3.0}
            memory.plot(series, [f.held_bytes or 0.0 for f in steps], **style)  # type: ignore[arg-type]
            speed.plot(series, [f.lines_per_s or 0.0 for f in steps], **style)  # type: ignore[arg-type]
    for axes, title in (
        (memory, "memory bytes/series (less is better, log)"),
        (speed, "new series/s (more is better, log)"),
    ):
        if axes.lines:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel("series", fontsize=SMALL)
        axes.set_title(title, loc="left", fontsize=TITLE)
        _plain(axes.xaxis)
        _plain(axes.yaxis)
    if speed.get_lines():
        figure.legend(
            *speed.get_legend_handles_labels(), frameon=False, ncols=4, loc="outside lower center", fontsize=SMALL
        )
    return figure
