"""Settings → the text of conf/tsd.conf, which shows each key with its default: `python -m tsd.config.template`."""

import sys
import textwrap
from dataclasses import Field, fields
from enum import Enum
from typing import Any

from tsd.config.keys import Key
from tsd.config.settings import SECTIONS, Config

WIDTH = 120
FIRST = ("network", "access", "TLS", "names", "storage")  # sections that new users need
HEAD = """\
# Settings of tsd, in the format of OpenTSDB's opentsdb.conf (Java properties): an existing file works unchanged. It is
# read as UTF-8, or as ISO-8859-1 if it is not valid UTF-8. Commented lines show the defaults. Sizes in bytes may end
# with K, M, G or T. This file is generated from tsd/config/settings.py: python -m tsd.config.template >conf/tsd.conf
#
# Every command accepts any key as an option, which overrides the file: --set KEY=VALUE.
# `tsd check-config --config FILE` lists all errors of a file; --show prints the values in use.
"""


def template() -> str:
    """Return the text of conf/tsd.conf."""
    sections = _sections()
    order = [*FIRST, *(title for title in sections if title not in FIRST)]
    return HEAD + "".join(_section(title, sections[title]) for title in order)


def _sections() -> dict[str, list[Field[Any]]]:
    """Return the fields of each section, by its title."""
    titles = {key: title for title, (keys, _) in SECTIONS.items() for key in keys}
    sections: dict[str, list[Field[Any]]] = {}
    title = ""
    for field in fields(Config):
        title = titles.get(field.metadata["key"].name, title)
        sections.setdefault(title, []).append(field)
    return sections


def _section(title: str, settings: list[Field[Any]]) -> str:
    intro = SECTIONS[title][1]
    lines = ["", f"# --- {title} ".ljust(WIDTH, "-")]
    lines += ["", *_comment(intro)] if intro else []
    for field in settings:
        key: Key = field.metadata["key"]
        lines += ["", *_comment(key.doc + _bounds(key)), f"#{key.name} = {shown(key, field.default)}".rstrip()]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def _bounds(key: Key) -> str:
    """Return the unit of a setting and its bounds, in words."""
    low = "" if key.low in (None, 0) else f"at least {_number(key.low, key.unit)}"
    high = "" if key.high is None else f"at most {_number(key.high, key.unit)}"
    words = ", ".join(part for part in (key.unit and f"in {key.unit}", low, high) if part)
    return f" [{words}]" if words else ""


def shown(key: Key, default: object) -> str:
    """Return a default in the format of the file.

    >>> shown(Key("tsd.storage.cache", "", "bytes"), 256 << 20), shown(Key("tsd.tls.required", ""), False)
    ('256M', 'false')
    """
    if default is None:
        return key.example
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, Enum):
        return str(default.value)
    return _number(default, key.unit) if isinstance(default, int) else str(default)


def _number(number: int | None, unit: str) -> str:
    if number and unit == "bytes":
        for letter, shift in (("G", 30), ("M", 20)):
            if number % (1 << shift) == 0:
                return f"{number >> shift}{letter}"
    return str(number)


if __name__ == "__main__":
    sys.stdout.write(template())
