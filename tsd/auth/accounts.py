"""The file of accounts (`tsd.auth.file`): one account per line, with a hash of its secret.

    NAME ROLES SECRET [expires=2027-01-01T00:00:00+00:00] [networks=10.0.0.0/8,fd00::/8]

ROLES are read, write and admin, separated by commas. A name may have several lines: a new token is added before the old
one is removed. A comment starts with #.

`file_state` detects changes of a file, so that it is reloaded.

Also checks the access settings that depend on each other.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tsd.auth.credentials import Secret, Token, parse_secret
from tsd.auth.hosts import parse_hosts
from tsd.auth.networks import ANY, Networks, parse_networks
from tsd.auth.roles import Principal, Role
from tsd.config.settings import AccessSettings
from tsd.config.state_dir import sync_folder
from tsd.errors import TsdError

ROLES = {"read": Role.READ, "write": Role.WRITE, "admin": Role.ADMIN}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MAX_FILE_BYTES = 16 << 20
NEVER = float("inf")


class Account(NamedTuple):
    """A name, its roles and one secret."""

    name: str
    roles: Role
    secret: Secret
    expires_s: float = NEVER  # Unix seconds
    networks: Networks = ANY  # from which the account may be used

    @property
    def principal(self) -> Principal:
        """Return the account's name and roles."""
        return Principal(self.name, self.roles)

    @property
    def label(self) -> str:
        """Return a short text that tells operators which secret of a name this is."""
        return self.secret.digest[:8] if isinstance(self.secret, Token) else str(self.secret).partition(":")[0]

    def __str__(self) -> str:
        words = [self.name, format_roles(self.roles), str(self.secret)]
        if self.expires_s != NEVER:
            words.append(f"expires={datetime.fromtimestamp(self.expires_s, UTC).isoformat()}")
        if self.networks:
            words.append(f"networks={self.networks}")
        return " ".join(words)


def parse_roles(text: str) -> Role:
    """Return roles by name, separated by commas. Raise ValueError.

    >>> parse_roles("read,write") == Role.READ | Role.WRITE, parse_roles("")
    (True, <Role.NONE: 0>)
    """
    found = Role.NONE
    for part in text.split(","):
        if word := part.strip():
            if word not in ROLES:
                raise ValueError(f"got {word!r}, wanted {', '.join(ROLES)}")
            found |= ROLES[word]
    return found


def format_roles(roles: Role) -> str:
    """Return the names of roles, separated by commas."""
    return ",".join(name for name, role in ROLES.items() if role in roles)


def parse_account(line: str) -> Account | None:
    """Return the account of a line; None if the line is empty. Raise ValueError."""
    words = line.partition("#")[0].split()
    if not words:
        return None
    if len(words) < 3:
        raise ValueError(f"got {len(words)} of 3 words, wanted NAME ROLES SECRET")
    if not NAME.fullmatch(words[0]):
        raise ValueError(f"got the name {words[0]!r}, wanted letters, digits and . _ @ - only, at most 64")
    account = Account(words[0], parse_roles(words[1]), parse_secret(words[2]))
    for word in words[3:]:
        key, _, value = word.partition("=")
        if key == "expires":
            account = account._replace(expires_s=parse_time(value))
        elif key == "networks":
            account = account._replace(networks=parse_networks(value))
            if not account.networks:
                raise ValueError(
                    "got networks= without a network, wanted one or more, such as 10.0.0.0/8,2001:db8::/32"
                )
        else:
            raise ValueError(f"got {word!r}, wanted expires=… or networks=…")
    return account


def parse_time(text: str) -> float:
    """Return Unix seconds of an ISO 8601 time or date, in UTC unless it has an offset. Raise ValueError."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"got the time {text!r}, wanted ISO 8601, such as 2030-12-31 or 2030-12-31T12:00:00+01:00"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def read_accounts(path: Path) -> list[Account]:
    """Return the accounts of a file. Raise TsdError with every invalid line, or if other users can access the file.

    A file is used completely or not at all: a part of it would lock accounts out or leave removed ones in.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not block on a pipe
        with open(fd, "rb") as file:
            problem = _find_problem(os.fstat(fd))
            data = b"" if problem else file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise TsdError(f"{path}: {exc.strerror or exc}") from exc
    if problem:
        raise TsdError(f"{path}: {problem}")
    if len(data) > MAX_FILE_BYTES:
        raise TsdError(f"{path}: got more than {MAX_FILE_BYTES} bytes, wanted a smaller file of accounts")
    found, problems = [], []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        try:
            account = parse_account(line)
        except ValueError as exc:  # without the line: it may contain a secret in the wrong place
            problems.append(f"{path}, line {number}: {exc}")
            continue
        if account is not None:
            found.append(account)
    if problems:
        raise TsdError("\n".join(problems))
    return found


def _find_problem(status: os.stat_result) -> str:
    """Return why a file is not safe for accounts; "" if it is safe."""
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}, wanted root or the daemon's user: its owner can add accounts"
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        return f"its mode is {stat.S_IMODE(status.st_mode):o}, wanted 600 or 640: other users can access it"
    return ""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace a file's lines atomically, and sync them: a revoked account must not be back after a loss of power. A new
    file gets mode 600. Raise TsdError."""
    path = Path(os.path.realpath(path))  # replace the target of a symbolic link, not the link
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            status = None
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            if status is not None:
                os.fchmod(fd, stat.S_IMODE(status.st_mode) & 0o640)
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, status.st_uid, status.st_gid)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(fd)
        os.replace(new, path)
        sync_folder(path.parent)
    except OSError as exc:
        with suppress(OSError):
            os.unlink(new)
        raise TsdError(f"{path}: {exc.strerror or exc}") from exc


FileState = tuple[int, int, int, int] | None


def file_state(path: str | Path) -> FileState:
    """Return a value that changes with the file's content, inode, mode and owner; None if the file cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def contradictions(settings: AccessSettings) -> Iterator[tuple[set[str], str]]:
    """Yield invalid or contradictory settings: the keys concerned, and an error message."""
    texts: dict[str, tuple[Callable[[str], object], str]] = {
        "tsd.network.allow": (parse_networks, settings.network_allow),
        "tsd.network.proxy_protocol": (parse_networks, settings.proxy_protocol_networks),
        "tsd.http.trusted_proxies": (parse_networks, settings.trusted_proxies),
        "tsd.http.hosts": (parse_hosts, settings.hosts or ""),
        "tsd.access.read_networks": (parse_networks, settings.read_networks),
        "tsd.access.write_networks": (parse_networks, settings.write_networks),
        "tsd.access.admin_networks": (parse_networks, settings.admin_networks),
        "tsd.access.anonymous": (parse_roles, settings.anonymous or ""),
    }
    for key, (read, text) in texts.items():
        try:
            read(text)
        except ValueError as exc:
            yield {key}, f"{key}: {exc}"
    if settings.authentication and not settings.auth_file:
        yield (
            {"tsd.core.authentication.enable", "tsd.auth.file"},
            "tsd.core.authentication.enable: requires tsd.auth.file, a file of accounts that `tsd token add` writes",
        )
    if settings.tls_client_crl and not settings.tls_client_ca:
        yield {"tsd.tls.client_crl", "tsd.tls.client_ca"}, "tsd.tls.client_crl: requires tsd.tls.client_ca"
    for key, value in (
        ("tsd.tls.key", settings.tls_key),
        ("tsd.tls.client_ca", settings.tls_client_ca),
        ("tsd.tls.required", settings.tls_required),
    ):
        if value and not settings.tls_certificate:
            yield {key, "tsd.tls.certificate"}, f"{key}: requires tsd.tls.certificate"
    if settings.tls_client_certificate == "required" and not settings.tls_client_ca:
        yield (
            {"tsd.tls.client_certificate", "tsd.tls.client_ca"},
            "tsd.tls.client_certificate: required needs tsd.tls.client_ca",
        )


def warnings(settings: AccessSettings, anonymous: Role, bind: str) -> Iterator[tuple[str, str]]:
    """Yield warnings at startup about settings that give other access than the operator may want: event, hint."""
    local = bind in ("localhost", "::1") or bind.startswith("127.")
    if Role.ADMIN in anonymous and not settings.admin_networks:
        yield "access.anonymous_admin", "every client may administer this daemon: see tsd.access.anonymous"
    if not local and not settings.authentication and anonymous and not settings.network_allow:
        yield (
            "access.open_port",
            "every client that reaches the port may read and write: set tsd.core.authentication.enable or "
            "tsd.network.allow (docs/security.md)",
        )
    if settings.auth_file and not settings.authentication:
        yield "access.accounts_unused", "tsd.auth.file has no effect: set tsd.core.authentication.enable"
    if not local and settings.authentication and not settings.tls_required:
        yield (
            "access.unencrypted_credentials",
            "clients may send tokens and passwords unencrypted: set tsd.tls.required (docs/security.md)",
        )
