"""Check the project's text for coined words: code, comments and documentation use the field's standard terms.

    python -m scripts.words [PATH...]

Prints one line for each coined word, and then exits with status 1. Identifiers are split at underscores and capitals,
so that `_let_strangers_in` and `StrangerLimit` both contain "stranger". PATHs replace the whole tree.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = ("tsd", "tests", "bench", "scripts", "docs", "conf", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CACHES = {"__pycache__", ".ruff_cache"}  # folders
SUFFIXES = frozenset({".py", ".pyi", ".pyx", ".pxd", ".pxi", ".md", ".conf", ".sh", ".service", ".socket", ""})

# Coined word or phrase -> standard terms. A regular expression, matched without regard to case between word boundaries.
WORDS = {
    "askers?": "client, query client",
    "badges?": "session",
    "beside": "alongside, in addition to, next to",
    "crowds?": "multiplexer",
    "crowded out": "over limit",
    "deadletters?": "rejected lines",
    "doorkeepers?": "authenticator",
    "doors?": "listener, server, endpoint",
    "for ever": "until cancelled",
    "hindered": "backpressure",
    "households?": "client prefix",
    "hung up|hangs up|hang up": "disconnected, closed",
    "hurry late": "reprioritize",
    "knobs?": "options",
    "meddle[ds]?|meddling": "interfere",
    "nobody": "no client, no caller, nothing",
    "of ours": "our, internal",
    "overdue": "timeout",
    "remembered": "cached",
    "set asides?": "quarantined",
    "sift(?:s|ed|ing)?": "filter",
    "somebody": "a client, a user",
    "some time": "later",
    "strangers?": "unauthenticated client, unknown series",
    "told of": "reported",
    "untold": "pending damage counts",
    "upkeep": "background tasks",
    "visitors?": "peer",
    "wavering": "flaky",
    "whoever": "a client that, a caller that",
    "whomever|whosoever": "a client that",
}

# Names of classes, functions and settings that are gone -> the present ones. Whole identifiers, case matters.
NAMES = {
    "Beside": "summary sources",
    "Fallen": "DaemonExited",
    "Ground": "Setup",
    "Growth": "NewNameLimit",
    "Holder": "partial-input budget",
    "Knobs": "Options",
    "PACE": "ingest load",
    "Permit": "Admission",
    "Permits": "Authorization",
    "Powers": "DaemonCommands",
    "SeriesNames": "SeriesResolver",
    "Signs": "cell signatures",
    "Standing": "StallTimer",
    "TellsWrites": "write notification",
    "aside": "quarantine",
    "may_stay": "still_allowed",
    "series_idle": "series_ttl",
    "unfinished_memory": "partial_input_memory",
    "remember_memory": "cache_memory",
    "query_scans": "parallel_scans",
}

# Uses that are right: (path, text of the line) -> a part of each.
ALLOWED = (
    ("scripts/words.py", ""),  # the list itself
    ("tests/unit/test_scripts.py", "DoorkeeperLimits"),  # examples for this check
    ("tests/unit/test_scripts.py", "_let_strangers_in"),
    ("tests/unit/test_scripts.py", "test_untold"),
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")
_WORD = re.compile(r"\b(?:" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")\b", re.IGNORECASE)
_NAME = re.compile(r"(?<![\w-])(?:" + "|".join(NAMES) + r")(?![\w-])")


def coined(line: str) -> Iterator[tuple[str, str]]:
    """Coined words of one line, each with its standard terms.

    >>> list(coined("class DoorkeeperStatistics(Growth):"))
    [('Doorkeeper', 'authenticator'), ('Growth', 'NewNameLimit')]
    >>> list(coined("an outdoor sensor; a growth of 3 %"))
    []
    """
    for match in _WORD.finditer(_CAMEL.sub(" ", line)):
        yield match[0], next(plain for word, plain in WORDS.items() if re.fullmatch(word, match[0], re.IGNORECASE))
    for match in _NAME.finditer(line):
        yield match[0], NAMES[match[0]]


def problems(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Files with coined words: the path from the root, and one sentence."""
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            if any(path == allowed and text in line for allowed, text in ALLOWED):
                continue
            for word, plain in coined(line):
                yield path, f"{path}:{number}: coined word {word!r}: say {plain}"


def text_files(paths: Iterable[str]) -> Iterator[Path]:
    """The text files under some paths of the tree."""
    for path in paths:
        top = ROOT / path
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and file.suffix in SUFFIXES and CACHES.isdisjoint(file.parts):
                yield file


def main(paths: list[str]) -> int:
    """Check `paths`, or the tree; the exit status."""
    wrong = [sentence for _, sentence in problems(text_files(paths or CHECKED))]
    print("\n".join(wrong) or "no coined words")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
