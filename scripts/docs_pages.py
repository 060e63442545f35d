"""MkDocs hook: give files outside docs/ a page on the site, and point links at those pages.

Documents link to files by their place in the repository, so that the links also work on a code host. A Markdown file
gets a page with its text, any other file (a configuration, a unit) a page that shows it.
"""

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages of the navigation. Other files get a page where a document links to them.
IN_NAVIGATION = {
    ROOT / "tsd/codec/opentsdb/FORMATS.md": "formats.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
REMOTE = re.compile(r"<(?:script|link|img)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")

_pages: dict[Path, str] = {}  # of files outside docs/: their place on the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    _pages.clear()
    _pages.update(IN_NAVIGATION)
    unread = [*sorted(DOCS.rglob("*.md")), *IN_NAVIGATION]
    while unread:
        file = unread.pop()
        for target in LINK.findall(file.read_text()):
            found = _outside(file, target)
            if found is not None and found not in _pages:
                _pages[found] = f"files/{found.relative_to(ROOT)}" + ("" if found.suffix == ".md" else ".md")
                unread += [found] * (found.suffix == ".md")
    for source, uri in _pages.items():
        inclusion = InclusionLevel.UNDEFINED if source in IN_NAVIGATION else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=_text(source), inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Point a page's links at the pages of the site."""
    sources = {uri: source for source, uri in _pages.items()}
    source = sources.get(page.file.src_uri, DOCS / page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = match[1]
        file = _file(source, target)
        if file is None:
            return target
        uri = _pages.get(file) or os.path.relpath(file, DOCS)
        return os.path.relpath(uri, Path(page.file.src_uri).parent)

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - by name
    """Raise PluginError where a page would load something from another host."""
    if found := REMOTE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def _file(source: Path, target: str) -> Path | None:
    """The file that a link in `source` leads to; None for another site's, and where there is none."""
    if ":" in target:
        return None
    file = Path(os.path.normpath(source.parent / target))
    return file if file.is_file() else None


def _outside(source: Path, target: str) -> Path | None:
    """The file, where it is one of the repository that lies outside docs/."""
    file = _file(source, target)
    return file if file is not None and file.is_relative_to(ROOT) and not file.is_relative_to(DOCS) else None


def _text(source: Path) -> str:
    """The Markdown of a file's page."""
    text = source.read_text()
    if source.suffix == ".md":
        return text
    return f"# {source.relative_to(ROOT)}\n\n~~~~text\n{text}~~~~\n"
