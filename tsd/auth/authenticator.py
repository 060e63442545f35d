"""Authenticate senders: addresses, tokens, passwords and certificates become principals with roles.

The file of accounts is reloaded when it changes. If the new file is invalid, the accounts stay as they are and the
error is logged.
"""

import hmac
import os
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio
from cachetools import LRUCache

from tsd.auth.accounts import NAME, Account, file_state, parse_roles, read_accounts
from tsd.auth.credentials import (
    DUMMY_PASSWORD,
    MAX_PASSWORD_CHARS,
    TOKEN_PREFIX,
    CertificateName,
    Password,
    Token,
    hash_token,
    looks_like_token,
)
from tsd.auth.networks import forwarded_client, parse_networks
from tsd.auth.roles import Principal, Role
from tsd.auth.throttle import LoginQueue, LoginThrottle
from tsd.config.settings import AccessSettings
from tsd.errors import TsdError
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

T = TypeVar("T")

NETWORK_SETTINGS = (  # applied by `set_networks`
    "tsd.network.allow", "tsd.network.proxy_protocol", "tsd.http.trusted_proxies", "tsd.access.read_networks",
    "tsd.access.write_networks", "tsd.access.admin_networks",
)  # fmt: skip

RELOAD_INTERVAL_S = 2
VERIFIED_CACHE = 4096  # verified passwords, stored as HMACs with a random key of this process
WRONG_CACHE = 1024  # wrong passwords, stored in the same way
DEFAULT_ROLES = Role.READ | Role.WRITE  # of all senders while authentication is off


class Session(NamedTuple):
    """An authenticated account, with the roles that it has at its address."""

    account: Account
    principal: Principal


class AuthStatistics(NamedTuple):
    """A snapshot of the counts; by protocol (telnet, http) where there are two."""

    succeeded: dict[str, int]
    denied: dict[str, int]
    outside: int  # connections from networks that are not allowed
    unauthorized: dict[str, int]  # requests that need an authenticated sender
    forbidden: dict[str, int]  # requests that need another role
    accounts: int


class Authenticator:
    """Decides which addresses may connect, and which principal a sender is."""

    def __init__(self, settings: AccessSettings, now_ms: Callable[[], int]) -> None:
        """Raise TsdError if the file of accounts is invalid."""
        self.enabled = settings.authentication
        self._path = Path(settings.auth_file)
        self._now_ms = now_ms
        self._network_lists: tuple[str, ...] = ()
        self.set_networks(settings)
        self._anonymous_roles = anonymous_roles(settings)
        self._throttle = LoginThrottle(settings.ipv6_prefix)
        self.login_queue = LoginQueue(settings.ipv6_prefix)
        self._key = os.urandom(32)
        self._verified: LRUCache[bytes, Account] = LRUCache(VERIFIED_CACHE)
        self._wrong: LRUCache[bytes, None] = LRUCache(WRONG_CACHE)
        self._succeeded, self._denied = {"telnet": 0, "http": 0}, {"telnet": 0, "http": 0}
        self._unauthorized, self._forbidden = {"telnet": 0, "http": 0}, {"telnet": 0, "http": 0}
        self._outside = 0
        self.hashed = 0  # passwords that were hashed for verification
        self._loaded_state = file_state(self._path)
        self._install(read_accounts(self._path) if self.enabled else [])

    def set_networks(self, settings: AccessSettings) -> bool:
        """Apply lists of networks. Return whether they changed. Raise ValueError."""
        before = self._network_lists
        self._network_lists = (
            settings.network_allow, settings.proxy_protocol_networks, settings.trusted_proxies,
            settings.read_networks, settings.write_networks, settings.admin_networks,
        )  # fmt: skip
        self._allowed, self._balancers, self._proxies, *by_role = map(parse_networks, self._network_lists)
        self._networks = tuple(zip((Role.READ, Role.WRITE, Role.ADMIN), by_role, strict=True))
        return before != self._network_lists

    # ---- by address

    def is_allowed(self, address: str) -> bool:
        """Return whether an address may connect. Counts a refusal."""
        if self._allowed.has(address):
            return True
        self._outside += 1
        return False

    def sends_proxy_header(self, address: str) -> bool:
        """Return whether an address is a balancer's: its connections begin with a header of the PROXY protocol."""
        return bool(self._balancers) and self._balancers.has(address)

    def is_http_proxy(self, address: str) -> bool:
        """Return whether an address is a trusted HTTP proxy's: its requests name their clients in headers."""
        return bool(self._proxies) and self._proxies.has(address)

    def client_address(self, address: str, headers: Mapping[str, str]) -> str:
        """Return the client's address of a request on a connection from `address`. Raise ValueError."""
        return forwarded_client(headers, address, self._proxies) if self.is_http_proxy(address) else address

    def anonymous(self, address: str) -> Principal:
        """Return the principal of an unauthenticated sender."""
        return Principal("", self._restrict_to_networks(address, self._anonymous_roles))

    def _restrict_to_networks(self, address: str, roles: Role) -> Role:
        """Return the roles that may be used from this address."""
        for role, networks in self._networks:
            if role in roles and networks and not networks.has(address):
                roles &= ~role
        return roles

    def still_allowed(self, address: str, principal: Principal, session: Session | None) -> bool:
        """Return whether a connected sender would be accepted now, with the same roles."""
        roles = self._anonymous_roles if session is None else session.account.roles
        return self._allowed.has(address) and self._restrict_to_networks(address, roles) == principal.roles

    # ---- by credentials

    def authenticate_certificate(self, names: Iterable[str], address: str) -> Session | None:
        """Return the session of the first account that has one of a verified certificate's names."""
        for name in names:
            account = self._by_certificate.get(name)
            if account is not None and (session := self._session_of(account, address)) is not None:
                return session
        return None

    async def authenticate_header(self, header: str, address: str) -> Session | None:
        """Return the session of an HTTP Authorization header; None if it is not valid. Raise TooManyAttempts."""
        scheme, _, rest = header.partition(" ")
        match scheme.lower():
            case "bearer":
                found = await self._authenticate("", rest.strip(), address, "http")
            case "basic":
                try:
                    name, _, secret = b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")
                except ValueError:
                    name, secret = "", ""
                found = await self._authenticate(name, secret, address, "http")
            case _:
                found = await self._authenticate("", "", address, "http")
        return found

    async def authenticate_command(self, words: Sequence[str], address: str) -> Session | None:
        """Return the session of a telnet `auth` command; None if it is not valid. Raise TooManyAttempts.

        `words` follow `auth`: a token, or `basic`, a name and a password.
        """
        match words:
            case [token]:
                return await self._authenticate("", token, address, "telnet")
            case ["basic", name, secret]:
                return await self._authenticate(name, secret, address, "telnet")
        return await self._authenticate("", "", address, "telnet")

    def is_valid(self, session: Session) -> bool:
        """Return whether a session is still valid: its account exists with the same secret and has not expired."""
        account = session.account
        return account in self._accounts and self._now_ms() < account.expires_s * 1000

    async def _authenticate(self, name: str, secret: str, address: str, protocol: str) -> Session | None:
        """Return the session of a token, or of a name with its token or password."""
        account = self._by_token(name, secret) if looks_like_token(secret) else None
        if account is None and name and 0 < len(secret) <= MAX_PASSWORD_CHARS:
            account = await self._by_password(name, secret, address)
        session = None if account is None else self._session_of(account, address)
        if session is not None:
            self._succeeded[protocol] += 1
            return session
        self._denied[protocol] += 1
        if account is None:
            reason = "credentials"
        else:  # those of an account: its owner cannot see what is wrong
            name, reason = account.name, "expired" if account.networks.has(address) else "network"
        await self._throttle.record_failure(address, protocol, _loggable(name), reason)
        return None

    def _session_of(self, account: Account, address: str) -> Session | None:
        """Return a session of an account; None if the account has expired or may not be used from this address."""
        principal = Principal(account.name, self._restrict_to_networks(address, account.roles))
        session = Session(account, principal)
        return session if account.networks.has(address) and self.is_valid(session) else None

    def _by_token(self, name: str, secret: str) -> Account | None:
        """Return the account of a token. The look-up is by digest, which prevents timing attacks."""
        account = self._by_digest.get(hash_token(secret).digest)
        return account if account is not None and name in ("", account.name) else None

    async def _by_password(self, name: str, secret: str, address: str) -> Account | None:
        """Return the account of a name and password. Raise TooManyAttempts.

        A verification costs much time and memory: results are cached, and new passwords wait in a queue.
        """
        verified, wrong = self._verified, self._wrong  # a reload during the verification replaces both
        digest = hmac.digest(self._key, f"{name}\0{secret}".encode("utf-8", "surrogatepass"), "sha256")
        known = verified.get(digest)
        if known is not None:
            return known
        if digest in wrong:
            return None
        await self._throttle.wait(address)
        async with self.login_queue.slot(address):
            account = await self._verify(name, secret)
        if account is None:
            wrong[digest] = None
        else:
            verified[digest] = account
            self.login_queue.record_success(address)
        return account

    async def _verify(self, name: str, secret: str) -> Account | None:
        """Return the account of this name that has this password. An unknown name takes as long as a known one."""
        accounts: Sequence[Account | None] = self._by_name.get(name) or [None]
        for account in accounts:
            password = account.secret if account is not None else DUMMY_PASSWORD
            assert isinstance(password, Password)
            self.hashed += 1
            if await trio.to_thread.run_sync(password.matches, secret) and account is not None:
                return account
        return None

    def count_refusal(self, principal: Principal, address: str, protocol: str, *, is_write: bool) -> None:
        """Count a refused request or command of an unauthorized sender. Log one that writes: most agents do not read
        the reply."""
        counts = self._unauthorized if self.enabled and not principal.name else self._forbidden
        counts[protocol] += 1
        if is_write:
            self._throttle.log_unauthorized(address, protocol, principal.name)

    # ---- the file of accounts

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""
        while self.enabled:
            await trio.sleep(RELOAD_INTERVAL_S)
            if await trio.to_thread.run_sync(file_state, self._path) != self._loaded_state:
                try:
                    await self.reload()
                except TsdError as error:
                    log.error("accounts.reload_failed", error=str(error))

    async def reload(self) -> None:
        """Load the file. Raise TsdError, and then changes nothing."""
        if self.enabled:
            self._loaded_state = await trio.to_thread.run_sync(file_state, self._path)
            self._install(await trio.to_thread.run_sync(read_accounts, self._path))

    def _install(self, accounts: Sequence[Account]) -> None:
        self._accounts = frozenset(accounts)
        self._by_digest = {one.secret.digest: one for one in accounts if isinstance(one.secret, Token)}
        self._by_certificate = {one.secret.name: one for one in accounts if isinstance(one.secret, CertificateName)}
        self._by_name: dict[str, list[Account]] = defaultdict(list)
        for one in accounts:
            if isinstance(one.secret, Password):
                self._by_name[one.name].append(one)
        self._by_name = dict(self._by_name)
        self._verified, self._wrong = LRUCache(VERIFIED_CACHE), LRUCache(WRONG_CACHE)
        if self.enabled:
            (log.info if accounts else log.warning)("accounts.loaded", file=str(self._path), accounts=len(accounts))

    def statistics(self) -> AuthStatistics:
        """Return a snapshot of the counts."""
        return AuthStatistics(
            dict(self._succeeded),
            dict(self._denied),
            self._outside,
            dict(self._unauthorized),
            dict(self._forbidden),
            len(self._accounts),
        )


def anonymous_roles(settings: AccessSettings) -> Role:
    """Return the roles of unauthenticated senders. Raise ValueError."""
    if settings.anonymous is None:
        return Role.NONE if settings.authentication else DEFAULT_ROLES
    return parse_roles(settings.anonymous)


def _loggable(name: str) -> str:
    """Return a name to log; a placeholder for an invalid name, or for a token sent as the name."""
    return name if not name or (NAME.fullmatch(name) and TOKEN_PREFIX not in name) else "(no name)"
