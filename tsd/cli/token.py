"""`tsd token`: the file of accounts, without an editor: who gets in, and who no longer does."""

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from tsd.access.accounts import (
    FOREVER,
    NAME,
    ROLES,
    Account,
    read_account,
    read_accounts,
    read_roles,
    read_time,
    write_lines,
    written_roles,
)
from tsd.access.networks import read_networks
from tsd.access.secret import Named, Password, Secret, Token, kept_password, kept_token, new_token
from tsd.assembly import now_ms
from tsd.cli.options import with_config
from tsd.config import Loaded
from tsd.errors import TsdError

DAY_S = 86400
LEAST_PASSWORD = 8

_file = click.option("--file", "path", type=click.Path(path_type=Path), help="The file (default: tsd.auth.file).")


@click.group()
def token() -> None:
    """Who gets in: add, list, revoke and check the lines of tsd.auth.file.

    A daemon that runs takes a change up within seconds; who is in by what was revoked is put out.
    """


@token.command()
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, required=True, type=click.Choice(list(ROLES)), help="May be given often."
)
@click.option("--expires", help="A day or time (2027-01-31), or a number of days (90d). Default: never.")
@click.option("--network", "networks", multiple=True, help="From where it is good: 10.0.0.0/8. May be given often.")
@click.option("--password", is_flag=True, help="Ask for a password, instead of making a token.")
@click.option(
    "--certificate", metavar="CN=…", help="A name in a client's certificate (CN=, DNS=, URI=, email=), instead."
)
@_file
@with_config
def add(
    loaded: Loaded,
    name: str,
    roles: Sequence[str],
    expires: str | None,
    networks: Sequence[str],
    *,
    password: bool,
    certificate: str | None,
    path: Path | None,
) -> None:
    """Let NAME in. A new token is printed, once: only its hash is kept."""
    if not NAME.fullmatch(name):
        raise TsdError(f"got the name {name!r}, wanted letters, digits and . _ @ - only, at most 64")
    if password and certificate:
        raise TsdError("wanted --password or --certificate, not both")
    made = ""
    secret: Secret
    if certificate:
        secret = Named(certificate)
    elif password:
        secret = kept_password(_typed_password())
    else:
        made = new_token()
        secret = kept_token(made)
    try:
        account = Account(
            name,
            read_roles(",".join(roles)),
            secret,
            _time(expires),
            read_networks(",".join(networks)),
        )
    except ValueError as exc:
        raise TsdError(str(exc)) from exc
    if read_account(str(account)) != account:  # or a daemon would not take the file
        raise TsdError(f"no line can say this: {account}")
    with _changing(_path(loaded, path)) as lines:
        lines.append(str(account))
    if made:
        click.echo(made)
    click.echo(f"{name} may {written_roles(account.roles)}", err=True)


@token.command("list")
@_file
@with_config
def list_(loaded: Loaded, path: Path | None) -> None:
    """Show who gets in: name, roles, what is kept of the secret (shortened), until when, from where."""
    for account in read_accounts(_path(loaded, path)):
        until = "never" if account.expires_s == FOREVER else _shown(account.expires_s)
        words = (account.name, written_roles(account.roles), _kind(account), account.label, until, account.networks)
        click.echo("\t".join(map(str, words)).rstrip())


@token.command()
@click.argument("name")
@click.option("--label", help="Of several secrets of that name only this one, as `list` shows it.")
@_file
@with_config
def revoke(loaded: Loaded, name: str, label: str | None, path: Path | None) -> None:
    """Let NAME in no longer. Remarks and other lines stay as they are."""
    gone = 0
    with _changing(_path(loaded, path)) as lines:
        for at in reversed(range(len(lines))):
            account = read_account(lines[at])
            if account is not None and account.name == name and label in (None, account.label):
                del lines[at]
                gone += 1
    if not gone:
        raise TsdError(f"there is no {name}" + (f" with {label}" if label else ""))
    click.echo(f"{gone} revoked", err=True)


@token.command()
@_file
@with_config
def check(loaded: Loaded, path: Path | None) -> None:
    """Read a token from standard input, and say whose it is; exit status 1 where nobody's."""
    digest = kept_token(sys.stdin.readline().strip()).digest
    for account in read_accounts(_path(loaded, path)):
        if isinstance(account.secret, Token) and account.secret.digest == digest:
            if account.expires_s <= now_ms() / 1000:
                raise TsdError(f"it was {account.name}'s, and expired {_shown(account.expires_s)}")
            click.echo(f"{account.name} may {written_roles(account.roles)}")
            return
    raise TsdError("nobody has this token")


@contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """The lines of a file, written back when the block ends. One command at a time; raises TsdError for a file that a
    daemon would not take."""
    path = Path(os.path.realpath(path))
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise TsdError(f"{path.parent}: {exc.strerror or exc}") from exc
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines: list[str] = []
        if path.exists():
            read_accounts(path)
            lines = path.read_text("utf-8").splitlines()
        yield lines
        write_lines(path, lines)
    finally:
        os.close(folder)


def _path(loaded: Loaded, path: Path | None) -> Path:
    found = path or (Path(loaded.config.auth_file) if loaded.config.auth_file else None)
    if found is None:
        raise TsdError("no file of accounts: set tsd.auth.file, or give --file")
    return found


def _typed_password() -> str:
    """A password, typed twice, or the first line of standard input where nobody is there to type."""
    typed: str = (
        click.prompt("Password", hide_input=True, confirmation_prompt=True)
        if sys.stdin.isatty()
        else sys.stdin.readline().rstrip("\n")
    )
    if len(typed) < LEAST_PASSWORD:
        raise TsdError(f"got a password of {len(typed)} characters, wanted {LEAST_PASSWORD} or more")
    return typed


def _time(text: str | None) -> float:
    """Unix seconds of a day, a time, or a number of days from now; raises ValueError."""
    if text is None:
        return FOREVER
    if text.endswith("d") and text[:-1].isdigit():
        return float(now_ms() // 1000 + int(text[:-1]) * DAY_S)
    return read_time(text)


def _shown(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def _kind(account: Account) -> str:
    return (
        "token"
        if isinstance(account.secret, Token)
        else ("password" if isinstance(account.secret, Password) else "certificate")
    )
