"""Citations of the specification in `docs/compat/` name sections that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "docs" / "compat"
CODE = ("tsd", "tests", "bench", "scripts")
NAMED = re.compile(r"[\w./-]*\b(?:wire|query)\.md")
CITED = re.compile(r"docs/compat/(\w+\.md)((?:(?!\w+\.md)[^)]){0,60})")


def sources() -> Iterator[Path]:
    for folder in CODE:
        for suffix in ("py", "pyi", "pyx", "pxi", "pxd"):
            yield from sorted((ROOT / folder).rglob(f"*.{suffix}"))


def sections(page: str) -> set[str]:
    """The numbers of a page's headings, e.g. `9` and `9.2`."""
    return set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", (COMPAT / page).read_text(), re.MULTILINE))


def test_every_citation_names_a_section_that_exists() -> None:
    found = [
        (str(path.relative_to(ROOT)), page, number)
        for path in sources()
        for page, after in CITED.findall(path.read_text())
        for number in re.findall(r"§(\d+(?:\.\d+)*)", after)
    ]
    assert len(found) > 50
    known = {page.name: sections(page.name) for page in COMPAT.glob("*.md")}
    assert [cited for cited in found if cited[2] not in known[cited[1]]] == []


@pytest.mark.slow
def test_page_is_named_by_its_path() -> None:
    short = {name for path in sources() for name in NAMED.findall(path.read_text()) if path != Path(__file__)}
    assert short <= {"docs/compat/wire.md", "docs/compat/query.md"}


@pytest.mark.parametrize("page", ["wire.md", "query.md"])
def test_sections_refer_to_sections_that_exist(page: str) -> None:
    text = (COMPAT / page).read_text()
    assert set(re.findall(r"§(\d+(?:\.\d+)*)", text)) <= sections(page)
