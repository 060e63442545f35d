"""Write the latest results: a summary to README.md, everything to docs/benchmarks.md, plots to docs/figures/."""

import re
from pathlib import Path

from bench.comparison.plots import draw
from bench.comparison.records import Run
from bench.comparison.systems import EMBEDDED
from bench.comparison.tables import STEADY, report, summary
from bench.report import OUT

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- scripts/bench readme: begin -->", "<!-- scripts/bench readme: end -->"
BETWEEN = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
PICTURES = {
    "cpu": "Speed and CPU under the steady load",
    "loads": "CPU under every load",
    "growth": "From ten thousand series to a million",
    "disk": "Bytes per point",
}


def publish(run: Run) -> None:
    """Print the report, and write it with its plots to the output folder of benchmarks."""
    text = report(run)
    (OUT / "all.md").write_text(f"{text}\n{_pictures('all', PICTURES)}")
    draw(run, OUT / "all")
    print(text)


def show(run: Run, root: Path = ROOT) -> None:
    """Write all three."""
    draw(run, root / "docs" / "figures")
    _between(root / "README.md", _short(run))
    _between(root / "docs" / "benchmarks.md", report(run) + "\n" + _pictures("figures", PICTURES))


def _short(run: Run) -> str:
    points = max((figures.points for figures in run.figures(STEADY, EMBEDDED)), default=0)
    several = {system: len(run.figures(STEADY, system)) for system in run.systems()}
    rounds = ", ".join(f"{count} of {system}" for system, count in several.items() if count > 1)
    head = (
        f"{points:,} lines of {run.titles[STEADY]} on four connections, until all are stored and read back. "
        f"Slow systems and HBase receive only the first part. Medians of alternating rounds: {rounds}, one of others; "
        f"{run.machine}."
    )
    return f"{head}\n\n{summary(run)}\n{_pictures('docs/figures', {'cpu': PICTURES['cpu']})}"


def _pictures(folder: str, pictures: dict[str, str]) -> str:
    return "\n".join(f"![{title}]({folder}/{name}.svg)\n" for name, title in pictures.items())


def _between(file: Path, text: str) -> None:
    """Replace the text between the markers. Raise ValueError if they are missing."""
    before = file.read_text()
    after, count = BETWEEN.subn(lambda _: f"{BEGIN}\n{text.strip()}\n{END}", before)
    if count != 1:
        raise ValueError(f"{file.name} has {count} pairs of markers, wanted one")
    file.write_text(after)
