"""The file of accounts (`tsd.auth.file`): one line each, secrets only as what is kept of them.

    NAME ROLES SECRET [expires=2027-01-01T00:00:00+00:00] [networks=10.0.0.0/8,fd00::/8]

ROLES are read, write and admin with commas between. A name may have several lines: a new token beside the old one,
while agents are changed over. What follows # is a remark.
"""

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tsd.access.networks import ANY, Networks, read_networks
from tsd.access.roles import Principal, Role
from tsd.access.secret import Secret, Token, read_secret
from tsd.errors import TsdError

ROLES = {"read": Role.READ, "write": Role.WRITE, "admin": Role.ADMIN}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MOST_BYTES = 16 << 20
FOREVER = float("inf")


class Account(NamedTuple):
    """Somebody, and one secret that shows it."""

    name: str
    roles: Role
    secret: Secret
    expires_s: float = FOREVER  # Unix seconds
    networks: Networks = ANY  # from where

    @property
    def principal(self) -> Principal:
        """Who it is."""
        return Principal(self.name, self.roles)

    @property
    def label(self) -> str:
        """What tells several secrets of one name apart, for people."""
        return self.secret.digest[:8] if isinstance(self.secret, Token) else str(self.secret).partition(":")[0]

    def __str__(self) -> str:
        words = [self.name, written_roles(self.roles), str(self.secret)]
        if self.expires_s != FOREVER:
            words.append(f"expires={datetime.fromtimestamp(self.expires_s, UTC).isoformat()}")
        if self.networks:
            words.append(f"networks={self.networks}")
        return " ".join(words)


def read_roles(text: str) -> Role:
    """Roles by name, with commas between; raises ValueError.

    >>> read_roles("read,write") == Role.READ | Role.WRITE, read_roles("")
    (True, <Role.NONE: 0>)
    """
    found = Role.NONE
    for part in text.split(","):
        if word := part.strip():
            if word not in ROLES:
                raise ValueError(f"got {word!r}, wanted {', '.join(ROLES)}")
            found |= ROLES[word]
    return found


def written_roles(roles: Role) -> str:
    """Their names, with commas between."""
    return ",".join(name for name, role in ROLES.items() if role in roles)


def read_account(line: str) -> Account | None:
    """The account of a line; None where it has none. Raises ValueError."""
    words = line.partition("#")[0].split()
    if not words:
        return None
    if len(words) < 3:
        raise ValueError("wanted NAME ROLES SECRET")
    if not NAME.fullmatch(words[0]):
        raise ValueError(f"got the name {words[0]!r}, wanted letters, digits and . _ @ - only, at most 64")
    account = Account(words[0], read_roles(words[1]), read_secret(words[2]))
    for word in words[3:]:
        key, _, value = word.partition("=")
        if key == "expires":
            account = account._replace(expires_s=read_time(value))
        elif key == "networks" and (networks := read_networks(value)):
            account = account._replace(networks=networks)
        else:
            raise ValueError(f"got {word!r}, wanted expires=… or networks=…")
    return account


def read_time(text: str) -> float:
    """Unix seconds of a time or a day of ISO 8601, in UTC unless it says otherwise; raises ValueError."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def read_accounts(path: Path) -> list[Account]:
    """The accounts of a file. Raises TsdError with every line that cannot be used, and where others could read it: a
    file that is half understood would leave somebody out, or in."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
        with open(fd, "rb") as file:
            why = _unsafe(os.fstat(fd))
            data = b"" if why else file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise TsdError(f"{path}: {exc.strerror or exc}") from exc
    if why:
        raise TsdError(f"{path}: {why}")
    if len(data) > MOST_BYTES:
        raise TsdError(f"{path}: more than {MOST_BYTES} bytes")
    found, problems = [], []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        try:
            account = read_account(line)
        except ValueError as exc:  # the line itself is not told: it may hold a secret in a wrong place
            problems.append(f"{path}, line {number}: {exc}")
            continue
        if account is not None:
            found.append(account)
    if problems:
        raise TsdError("\n".join(problems))
    return found


def _unsafe(about: os.stat_result) -> str:
    """Why a file is not fit to say who gets in, if it is not."""
    if not stat.S_ISREG(about.st_mode):
        return "not a file"
    if about.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {about.st_uid}, who could let anybody in: wanted root or the daemon's own user"
    if about.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        return f"its mode is {stat.S_IMODE(about.st_mode):o}, wanted 600 or 640: others could read or change it"
    return ""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Put lines in the place of a file's, all at once; a new file is its owner's alone. Raises TsdError."""
    path = Path(os.path.realpath(path))  # a link to it stays one
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            about = os.stat(path)
        except FileNotFoundError:
            about = None
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            if about is not None:
                os.fchmod(fd, stat.S_IMODE(about.st_mode) & 0o640)
                if (about.st_uid, about.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, about.st_uid, about.st_gid)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(fd)
        os.replace(new, path)
    except OSError as exc:
        with suppress(OSError):
            os.unlink(new)
        raise TsdError(f"{path}: {exc.strerror or exc}") from exc
