"""Format results of several rounds as a table, print it and write it to bench/out/."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

OUT = Path(__file__).parent / "out"


def spread(figures: Sequence[float], digits: int = 2) -> str:
    """Format the median, with minimum and maximum of several values.

    >>> spread([1.0, 3.0, 2.0], 1), spread([120000.0], 0)
    ('2.0 (1.0–3.0)', '120,000')
    """
    shown = f"{statistics.median(figures):,.{digits}f}"
    if len(figures) == 1:
        return shown
    return f"{shown} ({min(figures):,.{digits}f}–{max(figures):,.{digits}f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def machine() -> str:
    """Describe the machine, without its host name."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} × {model}, Python {platform.python_version()}"


def publish(name: str, text: str, figures: Mapping[str, object]) -> None:
    """Print a report, and save it with its data."""
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.md").write_text(text)
    (OUT / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(text)
