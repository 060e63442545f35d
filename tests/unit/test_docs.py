"""README and documentation: links, names of files, functions and settings, and examples are those of the code."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.running import running
from tests.unit.api.http_requests import http_post, http_request
from tsd.api.metrics import METRICS
from tsd.config.loader import CREDENTIAL_KEYS, MUST_BE_OFF, OPENTSDB_ONLY, UNSUPPORTED, keys
from tsd.daemon.settings import load_config
from tsd.errors import BadConfig

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
NOW = sorted({*PAGES} - {ROOT / "CHANGELOG.md"})  # pages that describe this version
SETTING_NAMES = {*keys(), *OPENTSDB_ONLY, *MUST_BE_OFF, *UNSUPPORTED, *(f"tsd.{key.split()[0]}" for key in METRICS)}
CODE = re.compile(r"```.*?```|~~~.*?~~~|^ {4}.*?$", re.DOTALL | re.MULTILINE)
MOST_LINES = 200  # of the README


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Where links to a page's headings lead."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Where a page's links within the repository lead: file and heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" not in target:
            file, _, heading = target.partition("#")
            yield ((page.parent / file).resolve() if file else page), heading


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    found = list(links(page))
    assert [file for file, _ in found if not file.exists()] == []
    assert [(file.name, heading) for file, heading in found if heading and heading not in anchors(file)] == []


def test_readme_is_short_and_links_the_documentation() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES
    assert {DOCS / "index.md", DOCS / "architecture.md", DOCS / "operations.md"} <= {file for file, _ in links(README)}


def test_index_links_every_page() -> None:
    linked = {file for file, _ in links(DOCS / "index.md")}
    assert set(DOCS.rglob("*.md")) - {DOCS / "index.md"} <= linked


def test_navigation_names_every_page() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} <= named


def test_collectd_example_is_the_shipped_file() -> None:
    snippet = re.search(r"( {4}LoadPlugin write_tsdb\n(?: {4}.*\n)*)", README.read_text())
    assert snippet is not None
    shown = [line.strip() for line in snippet[0].splitlines()]
    shipped = [line.strip() for line in (ROOT / "conf" / "collectd" / "tsd.conf").read_text().splitlines()]
    assert shown == [line for line in shipped if not line.startswith("#")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_source_files_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:tsd|tests|scripts|conf|bench)/[\w./@-]+?)/?`", page.read_text()))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@cache
def definitions(file: Path) -> set[str]:
    """The classes, functions and constants of a module, and the members of its classes with the class's name."""
    if file.suffix == ".pyx":
        return definitions_of_cython(file.read_text())
    module = ast.parse(file.read_text())
    members = {
        f"{one.name}.{name}" for one in module.body if isinstance(one, ast.ClassDef) for name in defined_in(one.body)
    }
    return {*defined_in(module.body), *members}


def defined_in(body: list[ast.stmt]) -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.AnnAssign | ast.Assign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def definitions_of_cython(source: str) -> set[str]:
    found: set[str] = set()
    owner = ""
    for indent, kind, name in re.findall(r"^( *)(?:cdef |async )?(class|def) (\w+)", source, re.MULTILINE):
        if not indent:
            owner = f"{name}." if kind == "class" else ""
        found.add(f"{owner}{name}" if indent else name)
    return found


def test_named_functions_are_in_the_named_files() -> None:
    """A sentence or a table names a file, and behind it, or in the next cell, what to read there."""
    found = [
        (page.name, *named)
        for page in NOW
        for named in re.findall(
            r"`((?:tsd|tests|scripts|bench)/[\w/]+\.pyx?)`((?:,?\s+(?:\| )?`[A-Z_a-z][\w.]*`)+)", page.read_text()
        )
    ]
    assert found
    wrong = [
        (page, path, name)
        for page, path, names in found
        for name in re.findall(r"[\w.]+", names)
        if name not in definitions(ROOT / path)
    ]
    assert wrong == []


def test_source_names_modules_and_functions_that_exist() -> None:
    """Docstrings and comments point to `tsd.package.module` and `tsd.package.module.name`."""
    packages = {folder.name for folder in (ROOT / "tsd").iterdir() if folder.is_dir()}
    sources = [file for suffix in ("py", "pyx", "pxi", "pxd") for file in (ROOT / "tsd").rglob(f"*.{suffix}")]
    named = {
        (str(file.relative_to(ROOT)), name)
        for file in sources
        for name in re.findall(r"`(tsd(?:\.\w+){2,})`", file.read_text())
        if name.split(".")[1] in packages
    }
    assert named
    assert sorted(one for one in named if one[1] not in SETTING_NAMES and not names_source(one[1])) == []


def names_source(name: str) -> bool:
    """Whether a dotted name is a package, a module, or what a module defines."""
    place = ROOT.joinpath(*name.split("."))
    if place.is_dir() or any(place.with_suffix(suffix).exists() for suffix in (".py", ".pyx", ".pxi", ".pxd")):
        return True
    package = place.parent / "__init__.py"
    if package.exists() and f'"{place.name}"' in package.read_text():  # in __all__
        return True
    files = (package, *(place.parent.with_suffix(suffix) for suffix in (".py", ".pyi", ".pyx")))
    return any(file.exists() and place.name in definitions(file) for file in files)


@pytest.mark.parametrize("page", NOW, ids=name_of)
def test_named_settings_exist(page: Path) -> None:
    """What a page calls by a full key is a setting, a counter of `stats` or a key of OpenTSDB."""
    known = SETTING_NAMES
    groups = {key.split(".")[1] for key in known if key.count(".") > 1}
    named = {
        key for key in re.findall(r"`(tsd\.\w+\.[\w.-]*\w)(?=[` ])", page.read_text()) if key.split(".")[1] in groups
    }
    assert sorted(named - known) == []


def test_settings_that_may_name_a_credential_are_listed() -> None:
    """A name that begins with a dot has the group of the name before it."""
    sentence = re.search(r"Settings with a file name\s+accept .*?\. ", (DOCS / "systemd.md").read_text(), re.DOTALL)
    assert sentence is not None
    listed: list[str] = []
    for name in re.findall(r"`(tsd\.[\w.]+|\.\w+)`", sentence[0]):
        listed.append(listed[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    assert sorted(listed) == sorted(CREDENTIAL_KEYS)


SETTINGS = re.compile(r"(?:^[ ]*tsd\.[\w.]+ = .*\n)+", re.MULTILINE)


def test_settings_that_pages_show_are_accepted(tmp_path: Path) -> None:
    """Each group of lines can be a configuration file."""
    wrong: dict[str, list[str]] = {}
    shown = [(page, group) for page in PAGES for group in SETTINGS.findall(page.read_text())]
    for number, (page, group) in enumerate(shown):
        file = tmp_path / f"{number}.conf"
        file.write_text(group)
        try:
            load_config(file)
        except BadConfig as exc:
            wrong[f"{name_of(page)}: {group}"] = exc.problems
    assert shown
    assert wrong == {}


def examples(page: Path) -> Iterator[tuple[str, str, str]]:
    """The path, body and answer of each `curl` on a page."""
    request = r"^\$ curl -sS '127\.0\.0\.1:4242(/[^']*)'(?: -d '([^']*)')?\n([\[{].*)$"
    yield from re.findall(request, page.read_text(), re.MULTILINE)


async def test_examples_of_http_are_answered_as_shown(tmp_path: Path) -> None:
    found = list(examples(DOCS / "http.md"))
    assert len(found) >= 5
    async with running(tmp_path) as daemon:
        for path, body, answer in found:
            response = await (http_post(daemon, path, body.encode()) if body else http_request(daemon, path))
            assert json.loads(response.body) == json.loads(answer), path
