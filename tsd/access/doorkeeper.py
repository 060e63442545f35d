"""Who gets in, and as whom: addresses, tokens, passwords and certificates → principals.

The file of accounts is read again when it changes. One that cannot be used changes nothing: what was read before holds,
and that is said.
"""

import hmac
import os
from base64 import b64decode
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
import trio

from tsd.access.accounts import NAME, Account, read_accounts, read_roles
from tsd.access.files import state_of
from tsd.access.forwarded import client_of
from tsd.access.guesses import Guesses
from tsd.access.networks import read_networks
from tsd.access.roles import Principal, Role
from tsd.access.secret import LONGEST, NOBODYS, PREFIX, Named, Password, Token, kept_token, looks_like_token
from tsd.access.turns import Turns
from tsd.access_settings import AccessSettings
from tsd.errors import TsdError

log = structlog.get_logger(__name__)

T = TypeVar("T")

NETWORKS = (  # settings of `go_by`
    "tsd.network.allow", "tsd.network.proxy_protocol", "tsd.http.trusted_proxies", "tsd.access.read_networks",
    "tsd.access.write_networks", "tsd.access.admin_networks",
)  # fmt: skip

LOOK_S = 2  # between looks at the file
VERIFIED = 4096  # passwords that were right, remembered by a digest that means nothing outside this process
WRONG = 1024  # likewise, that were not
OPEN_TO_ALL = Role.READ | Role.WRITE


class Badge(NamedTuple):
    """Somebody who has shown an account's secret, and may do this from where it is."""

    account: Account
    principal: Principal


class Statistics(NamedTuple):
    """The numbers of this moment, by door where there are two: telnet and http."""

    succeeded: dict[str, int]
    denied: dict[str, int]
    outside: int  # connections from networks that are not let in
    unauthorized: dict[str, int]  # asked for what needs somebody known
    forbidden: dict[str, int]  # known, or not, and may not
    accounts: int


class Doorkeeper:
    """Decides who gets in."""

    def __init__(self, settings: AccessSettings, now_ms: Callable[[], int]) -> None:
        """Raises TsdError where the file of accounts cannot be used."""
        self.enabled = settings.authentication
        self._path = Path(settings.auth_file)
        self._now_ms = now_ms
        self._lists: tuple[str, ...] = ()
        self.go_by(settings)
        self._strangers = anonymous_roles(settings)
        self._guesses = Guesses(settings.ipv6_prefix)
        self._hashing = Turns(settings.ipv6_prefix)
        self._key = os.urandom(32)
        self._verified: OrderedDict[bytes, Account] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._succeeded, self._denied = {"telnet": 0, "http": 0}, {"telnet": 0, "http": 0}
        self._unauthorized, self._forbidden = {"telnet": 0, "http": 0}, {"telnet": 0, "http": 0}
        self._outside = 0
        self.hashed = 0  # passwords that were worked on
        self._seen = state_of(self._path)
        self._enter(read_accounts(self._path) if self.enabled else [])

    def go_by(self, settings: AccessSettings) -> bool:
        """Go by these lists of networks from now on; whether they are others. Raises ValueError."""
        before = self._lists
        self._lists = (
            settings.network_allow, settings.announcing, settings.forwarding,
            settings.read_networks, settings.write_networks, settings.admin_networks,
        )  # fmt: skip
        self._allowed, self._announcing, self._forwarding, *by_role = map(read_networks, self._lists)
        self._networks = tuple(zip((Role.READ, Role.WRITE, Role.ADMIN), by_role, strict=True))
        return before != self._lists

    # ---- without showing anything

    def admits(self, address: str) -> bool:
        """Whether an address may connect at all."""
        if self._allowed.has(address):
            return True
        self._outside += 1
        return False

    def announces(self, address: str) -> bool:
        """Whether it is a balancer's, who says in the PROXY protocol whose connection it is."""
        return bool(self._announcing) and self._announcing.has(address)

    def forwards(self, address: str) -> bool:
        """Whether it is a proxy's, whose requests are others': they are asked for one by one who they are."""
        return bool(self._forwarding) and self._forwarding.has(address)

    def behind(self, address: str, headers: Mapping[str, str]) -> str:
        """The address that a request comes from, which came from `address`. Raises ValueError."""
        return client_of(headers, address, self._forwarding) if self.forwards(address) else address

    def stranger(self, address: str) -> Principal:
        """Who has not shown who it is."""
        return Principal("", self._from(address, self._strangers))

    def _from(self, address: str, roles: Role) -> Role:
        """What is left of roles, where they are asked for from this address."""
        for role, networks in self._networks:
            if role in roles and networks and not networks.has(address):
                roles &= ~role
        return roles

    def may_stay(self, address: str, principal: Principal, badge: Badge | None) -> bool:
        """Whether somebody who is in would be let in now, and have the same roles."""
        roles = self._strangers if badge is None else badge.account.roles
        return self._allowed.has(address) and self._from(address, roles) == principal.roles

    # ---- showing it

    def by_certificate(self, names: Iterable[str], address: str) -> Badge | None:
        """Who a verified certificate belongs to: the first account that has one of its names."""
        for name in names:
            account = self._by_certificate.get(name)
            if account is not None and (badge := self._badge(account, address)) is not None:
                return badge
        return None

    async def by_header(self, header: str, address: str) -> Badge | None:
        """Who an HTTP header Authorization shows; None where it shows nobody. Raises TooManyTries."""
        scheme, _, rest = header.partition(" ")
        match scheme.lower():
            case "bearer":
                found = await self._check("", rest.strip(), address, "http")
            case "basic":
                try:
                    name, _, secret = b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")
                except ValueError:
                    name, secret = "", ""
                found = await self._check(name, secret, address, "http")
            case _:
                found = await self._check("", "", address, "http")
        return found

    async def by_words(self, words: Sequence[str], address: str) -> Badge | None:
        """Who the words behind telnet's `auth` show: a token, or `basic`, a name and a password. Raises
        TooManyTries."""
        match words:
            case [token]:
                return await self._check("", token, address, "telnet")
            case ["basic", name, secret]:
                return await self._check(name, secret, address, "telnet")
        return await self._check("", "", address, "telnet")

    def holds(self, badge: Badge) -> bool:
        """Whether somebody may still be who it has shown to be: its secret was not taken back, and has not expired."""
        account = badge.account
        return account in self._accounts and self._now_ms() < account.expires_s * 1000

    async def _check(self, name: str, secret: str, address: str, door: str) -> Badge | None:
        """Who has this secret, and the name if one is given."""
        account = self._by_token(name, secret) if looks_like_token(secret) else None
        if account is None and name and 0 < len(secret) <= LONGEST:
            account = await self._by_password(name, secret, address)
        badge = None if account is None else self._badge(account, address)
        if badge is not None:
            self._succeeded[door] += 1
            return badge
        self._denied[door] += 1
        await self._guesses.failed(address, door, _loggable(name))
        return None

    def _badge(self, account: Account, address: str) -> Badge | None:
        """An account's, where its secret still holds and is shown from where it may be."""
        principal = Principal(account.name, self._from(address, account.roles))
        badge = Badge(account, principal)
        return badge if account.networks.has(address) and self.holds(badge) else None

    def _by_token(self, name: str, secret: str) -> Account | None:
        """Found by the digest: where a comparison stops tells nobody anything of a token that hashes to it."""
        account = self._by_digest.get(kept_token(secret).digest)
        return account if account is not None and name in ("", account.name) else None

    async def _by_password(self, name: str, secret: str, address: str) -> Account | None:
        """Each costs a thread much time and memory: what was right, or wrong, before is remembered; the others wait for
        each other, and those of one address for its earlier failures. Raises TooManyTries."""
        verified, wrong = self._verified, self._wrong  # of this file: what it says does not hold for the next one
        digest = hmac.digest(self._key, f"{name}\0{secret}".encode("utf-8", "surrogatepass"), "sha256")
        known = verified.get(digest)
        if known is not None:
            verified.move_to_end(digest)
            return known
        if digest in wrong:
            return None
        await self._guesses.wait_turn(address)
        async with self._hashing.turn(address):
            account = await self._looked_at(name, secret)
        if account is None:
            _remember(wrong, digest, None, WRONG)
        else:
            _remember(verified, digest, account, VERIFIED)
            self._hashing.note_good(address)
        return account

    async def _looked_at(self, name: str, secret: str) -> Account | None:
        """Whose password it is."""
        accounts: Sequence[Account | None] = self._by_name.get(name) or [None]
        for account in accounts:
            kept = account.secret if account is not None else NOBODYS
            assert isinstance(kept, Password)
            self.hashed += 1
            if await trio.to_thread.run_sync(kept.fits, secret) and account is not None:
                return account
        return None

    # ---- for doors

    def note_refusal(self, principal: Principal, door: str) -> None:
        """Somebody asked for what it may not do."""
        (self._forbidden if principal.name or not self.enabled else self._unauthorized)[door] += 1

    # ---- the file

    async def watch(self) -> None:
        """Read the file again whenever it changes, for ever."""
        while self.enabled:
            await trio.sleep(LOOK_S)
            if await trio.to_thread.run_sync(state_of, self._path) != self._seen:
                try:
                    await self.reload()
                except TsdError as error:
                    log.error("the file of accounts has changed and cannot be used", because=str(error))

    async def reload(self) -> None:
        """Read the file again. Raises TsdError, and then nothing has changed."""
        if self.enabled:
            self._seen = await trio.to_thread.run_sync(state_of, self._path)
            self._enter(await trio.to_thread.run_sync(read_accounts, self._path))

    def _enter(self, accounts: Sequence[Account]) -> None:
        self._accounts = frozenset(accounts)
        self._by_digest = {one.secret.digest: one for one in accounts if isinstance(one.secret, Token)}
        self._by_certificate = {one.secret.name: one for one in accounts if isinstance(one.secret, Named)}
        self._by_name: dict[str, list[Account]] = defaultdict(list)
        for one in accounts:
            if isinstance(one.secret, Password):
                self._by_name[one.name].append(one)
        self._by_name = dict(self._by_name)
        self._verified, self._wrong = OrderedDict(), OrderedDict()
        if self.enabled:
            told = log.info if accounts else log.warning
            told("accounts read", file=str(self._path), accounts=len(accounts))

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        return Statistics(
            dict(self._succeeded),
            dict(self._denied),
            self._outside,
            dict(self._unauthorized),
            dict(self._forbidden),
            len(self._accounts),
        )


def anonymous_roles(settings: AccessSettings) -> Role:
    """What those may do who have not shown who they are; raises ValueError."""
    if settings.anonymous is None:
        return Role.NONE if settings.authentication else OPEN_TO_ALL
    return read_roles(settings.anonymous)


def _loggable(name: str) -> str:
    """A name that somebody gave, for the log: some put a token there, or what would be no name of ours."""
    return name if not name or (NAME.fullmatch(name) and PREFIX not in name) else "(no name)"


def _remember(kept: OrderedDict[bytes, T], digest: bytes, value: T, most: int) -> None:
    kept[digest] = value
    if len(kept) > most:
        kept.popitem(last=False)
