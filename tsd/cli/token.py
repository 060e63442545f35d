"""`tsd token`: add, list, revoke and check accounts in the accounts file."""

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from tsd.auth.accounts import (
    NAME,
    NEVER,
    ROLES,
    Account,
    format_roles,
    parse_account,
    parse_roles,
    parse_time,
    read_accounts,
    write_lines,
)
from tsd.auth.credentials import (
    Password,
    Secret,
    Token,
    hash_password,
    hash_token,
    new_token,
    parse_certificate_name,
)
from tsd.auth.networks import parse_networks
from tsd.cli.options import config_options, drop_output
from tsd.cli.settings import with_config
from tsd.config.files import exists
from tsd.config.loader import Loaded
from tsd.daemon.settings import now_ms
from tsd.errors import TsdError

MIN_PASSWORD = 8

_file = click.option("--file", "path", type=click.Path(path_type=Path), help="Accounts file (default: tsd.auth.file).")

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_json_lines = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


@click.group()
@config_options
def token(**_: object) -> None:
    """Manage the accounts of tsd.auth.file.

    A running daemon applies changes within seconds, and closes connections of revoked accounts.
    """


@token.command()
@click.argument("name")
@click.option("--role", "roles", multiple=True, required=True, type=click.Choice(list(ROLES)), help="Repeatable.")
@click.option("--expires", help="A day or time (2027-01-31), or a number of days (90d). Default: never.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    help="Network from which the account may be used, e.g. 10.0.0.0/8. Repeatable.",
)
@click.option("--password", is_flag=True, help="Prompt for a password instead of creating a token.")
@click.option(
    "--certificate",
    metavar="CN=…",
    help="Use a name in a client certificate (CN=, DNS=, URI=, email=) instead of a token.",
)
@_json
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
    as_json: bool,
) -> None:
    """Add account NAME. The new token is printed only once: the file has its hash."""
    if not NAME.fullmatch(name):
        raise click.UsageError(f"got the name {name!r}, wanted letters, digits and . _ @ - only, at most 64")
    if password and certificate is not None:
        raise click.UsageError("wanted --password or --certificate, not both")
    token_text = ""
    secret: Secret
    try:
        if certificate is not None:
            secret = parse_certificate_name(certificate)
        elif password:
            secret = hash_password(_read_password())
        else:
            token_text = new_token()
            secret = hash_token(token_text)
        account = Account(
            name,
            parse_roles(",".join(roles)),
            secret,
            _time(expires),
            parse_networks(",".join(networks)),
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if parse_account(str(account)) != account:  # otherwise a daemon would reject the file
        raise TsdError(f"the file cannot express this account: {account}")
    with _edit_lines(_path(loaded, path)) as lines:
        lines.append(str(account))
        # First: an account whose token was not printed would be without use.
        _print_at_once(json.dumps({**_described(account), "token": token_text or None}) if as_json else token_text)
    if not as_json:
        click.echo(f"{name} may {format_roles(account.roles)}", err=True)


def _print_at_once(text: str) -> None:
    """Print a line, if there is one. Raise TsdError if it cannot be written or has no reader."""
    try:
        if text:
            click.echo(text)  # which flushes
    except OSError as exc:
        drop_output()
        raise TsdError(f"no account was added, as its token cannot be printed: {exc.strerror}") from exc


@token.command("list")
@_json_lines
@_file
@with_config
def list_(loaded: Loaded, path: Path | None, as_json: bool) -> None:
    """List accounts: name, roles, kind and label of the secret, expiry, networks."""
    for account in read_accounts(_path(loaded, path)):
        if as_json:
            click.echo(json.dumps(_described(account)))
            continue
        until = "never" if account.expires_s == NEVER else _shown(account.expires_s)
        words = (account.name, format_roles(account.roles), _kind(account), account.label, until, account.networks)
        click.echo("\t".join(map(str, words)).rstrip())


@token.command()
@click.argument("name")
@click.option("--label", help="Revoke only the secret with this label, as shown by `list`.")
@_json
@_file
@with_config
def revoke(loaded: Loaded, name: str, label: str | None, path: Path | None, as_json: bool) -> None:
    """Revoke account NAME. Comments and other lines are kept."""
    revoked = 0
    with _edit_lines(_path(loaded, path)) as lines:
        for at in reversed(range(len(lines))):
            account = parse_account(lines[at])
            if account is not None and account.name == name and label in (None, account.label):
                del lines[at]
                revoked += 1
    if not revoked:
        raise TsdError(f"no account {name}" + (f" with label {label}" if label else ""))
    if as_json:
        click.echo(json.dumps({"name": name, "revoked": revoked}))
    else:
        click.echo(f"{revoked} revoked", err=True)


@token.command()
@_json
@_file
@with_config
def check(loaded: Loaded, path: Path | None, as_json: bool) -> None:
    """Read a token from standard input and print its account. Exit status 1 if there is none."""
    digest = hash_token(sys.stdin.readline().strip()).digest
    for account in read_accounts(_path(loaded, path)):
        if isinstance(account.secret, Token) and account.secret.digest == digest:
            if account.expires_s <= now_ms() / 1000:
                raise TsdError(f"the token of {account.name} expired on {_shown(account.expires_s)}")
            described = (
                json.dumps(_described(account)) if as_json else f"{account.name} may {format_roles(account.roles)}"
            )
            click.echo(described)
            return
    raise TsdError("no account has this token")


@contextmanager
def _edit_lines(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file under a lock, and write them back at the end of the block. Raise TsdError for a file
    that a daemon would reject."""
    path = Path(os.path.realpath(path))
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise TsdError(f"{path.parent}: {exc.strerror or exc}") from exc
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines: list[str] = []
        if exists(path):
            read_accounts(path)
            lines = path.read_text("utf-8").splitlines()
        yield lines
        write_lines(path, lines)
    finally:
        os.close(folder)


def _path(loaded: Loaded, path: Path | None) -> Path:
    found = path or (Path(loaded.config.auth_file) if loaded.config.auth_file else None)
    if found is None:
        raise TsdError("no accounts file: set tsd.auth.file, or give --file")
    return found


def _read_password() -> str:
    """Prompt for a password twice; without a terminal, read the first line of standard input."""
    typed: str = (
        click.prompt("Password", hide_input=True, confirmation_prompt=True)
        if sys.stdin.isatty()
        else sys.stdin.readline().rstrip("\n")
    )
    if len(typed) < MIN_PASSWORD:
        raise TsdError(f"got a password of {len(typed)} characters, wanted {MIN_PASSWORD} or more")
    return typed


def _time(text: str | None) -> float:
    """Return Unix seconds for a date, a time, or a number of days from now. Raise ValueError."""
    if text is None:
        return NEVER
    now_s = now_ms() // 1000
    try:
        days = timedelta(int(text[:-1]) if text.endswith("d") and text[:-1].isdecimal() else 0)
        time_s = (datetime.fromtimestamp(now_s, UTC) + days).timestamp() if days else parse_time(text)
    except OverflowError as exc:
        raise ValueError(f"got --expires {text}, wanted a time before the year 10000") from exc
    if time_s <= now_s:
        raise ValueError(f"got --expires {text}, wanted a time that has not passed")
    return time_s


def _shown(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def _described(account: Account) -> dict[str, object]:
    """Return an account as JSON members, without its secret."""
    return {
        "name": account.name,
        "roles": format_roles(account.roles).split(","),
        "kind": _kind(account),
        "label": account.label,
        "expires": None if account.expires_s == NEVER else _shown(account.expires_s),
        "networks": [str(network) for network in account.networks],
    }


def _kind(account: Account) -> str:
    return (
        "token"
        if isinstance(account.secret, Token)
        else ("password" if isinstance(account.secret, Password) else "certificate")
    )
