"""`python -m tsd.cli.manual FOLDER`: write man pages of all commands to FOLDER, from their help.

The repository has them in packaging/share/man/man1.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tsd.cli import COMMANDS as NAMES
from tsd.cli import find_command, tsd

FILES = """\
.TP
.I tsd.conf, /etc/tsd/tsd.conf
Configuration. Without --config the first one that exists is read. The service of the Debian package reads the second.
"""
STATUSES = """\
0 success; 1 refused, not found or corrupt; 2 wrong usage or configuration; 3 the store failed; 4 another process, or a
newer version, owns the state folder; 130 after Ctrl-C.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page: its name without section, and its text in roff."""
    context = click.Context(tsd, info_name="tsd")
    yield "tsd", page(tsd, context, [(f"tsd {name}", find_command(name)) for name in NAMES])
    for name in NAMES:
        yield from _command_pages(find_command(name), context, f"tsd {name}")


def _command_pages(command: click.Command, parent: click.Context, title: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=title.rpartition(" ")[2], parent=parent)
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    shown = [(f"{title} {one.name}", one) for one in inner if not one.hidden]
    yield title.replace(" ", "-"), page(command, context, shown)
    for below, one in shown:
        yield from _command_pages(one, context, below)


def page(command: click.Command, context: click.Context, commands: list[tuple[str, click.Command]]) -> str:
    """Return the man page of a command; `commands` are those below it."""
    title = context.command_path
    text = [
        f'.TH "{escape(title.upper().replace(" ", "-"))}" 1 "" tsd "Commands of tsd"\n',
        f".SH NAME\n{escape(title.replace(' ', '-'))} \\- {escape(command.get_short_help_str(200).rstrip('.'))}\n",
        f".SH SYNOPSIS\n.B {escape(title)}\n{escape(' '.join(command.collect_usage_pieces(context)))}\n",
        f".SH DESCRIPTION\n{_paragraphs(command.help or '')}",
    ]
    shown = (param for param in command.get_params(context) if isinstance(param, click.Option) and not param.hidden)
    options = [record for record in (option.get_help_record(context) for option in shown) if record]
    if options:
        text.append(".SH OPTIONS\n" + "".join(_entry(name, about) for name, about in options))
    if commands:
        entries = (_entry(name, one.get_short_help_str(200)) for name, one in commands)
        text.append(".SH COMMANDS\n" + "".join(entries))
    text.append(f".SH EXIT STATUS\n{escape(STATUSES)}")
    text.append(f".SH FILES\n{FILES}")
    others = ["tsd", *(name for name, _ in commands)]
    text.append(".SH SEE ALSO\n" + ", ".join(f"{escape(name.replace(' ', '-'))}(1)" for name in others) + "\n")
    return "".join(text)


def escape(text: str) -> str:
    """Return text that roff prints as it is.

    >>> escape("-a 1h-ago")
    '\\\\-a 1h\\\\-ago'
    >>> print(escape(".conf"))
    \\&.conf
    """
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def _paragraphs(text: str) -> str:
    paragraphs = (" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))
    return ".PP\n".join(escape(part) + "\n" for part in paragraphs if part)


def _entry(name: str, about: str) -> str:
    return f".TP\n.B {escape(name)}\n{escape(about)}\n"


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / f"{name}.1").write_text(text, "ascii")


if __name__ == "__main__":
    main()
