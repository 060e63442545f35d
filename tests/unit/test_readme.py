"""What README.md promises that a machine can check."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """A section's text."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of its tables, without heads and rules."""
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if "|" in line]
    return [row for at, row in enumerate(found) if not is_rule(row) and not is_rule(found[min(at + 1, len(found) - 1)])]


def is_rule(row: list[str]) -> bool:
    return all(set(cell) == {"-"} for cell in row)


DIFFERENCES = rows(section("Differences from OpenTSDB"))


def test_there_are_differences() -> None:
    assert len(DIFFERENCES) > 20
    assert all(len(row) == 3 for row in DIFFERENCES)


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row[0][:40])
def test_a_difference_is_pinned_by_a_test_that_exists(row: list[str]) -> None:
    if row[2] == "the same":
        return
    names = re.findall(r"`([^`]+)::(test_\w+)`", row[2])
    assert names
    for file, name in names:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), (file, name)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_collectd_snippet_is_the_files() -> None:
    snippet = re.search(r"( {4}LoadPlugin write_tsdb\n(?: {4}.*\n)*)", section("Agents"))
    assert snippet is not None
    told = [line.strip() for line in snippet[0].splitlines()]
    kept = [line.strip() for line in (ROOT / "conf" / "collectd" / "tsd.conf").read_text().splitlines()]
    assert told == [line for line in kept if not line.startswith("#")]
