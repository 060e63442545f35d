"""Authentication by tokens, passwords and certificates, and the delays after failures."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.clock import advance_to_next_poll
from tsd.auth.accounts import Account, write_lines
from tsd.auth.authenticator import RELOAD_INTERVAL_S, Authenticator
from tsd.auth.credentials import CertificateName, Password, hash_password, hash_token, new_token
from tsd.auth.networks import parse_networks
from tsd.auth.roles import Role
from tsd.auth.throttle import LoginQueue, LoginThrottle, TooManyAttempts
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.errors import TsdError

NOW_MS = 1_800_000_000_000
LOCAL = "192.0.2.1"


def quick(password: str) -> Password:
    """Return the cheapest hash of a password that the file accepts."""
    return Password(10, 1, 1, b"salt", hashlib.scrypt(password.encode(), salt=b"salt", n=1024, r=1, p=1, dklen=32))


def authenticator(folder: Path, accounts: Sequence[Account] = (), **settings: str) -> Authenticator:
    """Return an authenticator with accounts; settings are by the end of their key in tsd.access."""
    write_lines(folder / "accounts", map(str, accounts))
    given = {"tsd.core.authentication.enable": "true", "tsd.auth.file": str(folder / "accounts")}
    given |= {f"tsd.access.{key}": value for key, value in settings.items()}
    config, _ = read_config(Given("test", key, value) for key, value in given.items())
    return Authenticator(config, lambda: NOW_MS)


def basic(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()


async def test_token_authenticates_by_every_scheme(tmp_path: Path) -> None:
    token = new_token()
    subject = authenticator(tmp_path, [Account("agent", Role.WRITE, hash_token(token))])
    for header in (f"Bearer {token}", f"bearer  {token}", basic("agent", token), basic("", token)):
        session = await subject.authenticate_header(header, LOCAL)
        assert session is not None
        assert session.principal == ("agent", Role.WRITE)
    for words in ([token], ["basic", "agent", token]):
        assert await subject.authenticate_command(words, LOCAL) is not None
    assert subject.statistics().succeeded == {"telnet": 2, "http": 4}


async def test_wrong_credentials_are_denied(tmp_path: Path, autojump_clock: MockClock) -> None:
    token = new_token()
    subject = authenticator(tmp_path, [Account("agent", Role.WRITE, hash_token(token))])
    wrong = ["", "Bearer", f"Bearer {new_token()}", f"Bearer {token} x", f"Digest {token}", basic("other", token)]
    wrong += ["Basic", "Basic ////", "Basic ====", basic("agent", ""), f"Bearer {hash_token(token).digest}"]
    for header in wrong:
        assert await subject.authenticate_header(header, LOCAL) is None, header
    for words in ([], [""], ["basic"], ["basic", token], ["basic", "other", token], [token, token], ["digest", token]):
        assert await subject.authenticate_command(words, LOCAL) is None, words
    assert subject.statistics().denied == {"telnet": 7, "http": len(wrong)}


async def test_secret_is_limited_by_expiry_and_networks(tmp_path: Path, autojump_clock: MockClock) -> None:
    token = new_token()
    account = Account("agent", Role.WRITE, hash_token(token), NOW_MS / 1000 + 1, parse_networks("192.0.2.0/24"))
    subject = authenticator(tmp_path, [account])
    assert await subject.authenticate_header(f"Bearer {token}", LOCAL) is not None
    assert await subject.authenticate_header(f"Bearer {token}", "198.51.100.1") is None
    late = authenticator(tmp_path, [account._replace(expires_s=NOW_MS / 1000)])
    assert await late.authenticate_header(f"Bearer {token}", LOCAL) is None


async def test_revoked_session_is_invalid(tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    accounts = [Account(name, Role.WRITE, hash_token(one)) for name, one in (("a", token), ("b", other))]
    subject = authenticator(tmp_path, accounts)
    sessions = [await subject.authenticate_command([one], LOCAL) for one in (token, other)]
    write_lines(tmp_path / "accounts", [str(accounts[1])])
    await subject.reload()
    assert [session is not None and subject.is_valid(session) for session in sessions] == [False, True]
    (tmp_path / "accounts").chmod(0o644)
    with pytest.raises(TsdError, match=r"\b644\b"):
        await subject.reload()
    assert await subject.authenticate_command([other], LOCAL) is not None  # the accounts stay as they were


async def test_roles_are_limited_to_networks(tmp_path: Path) -> None:
    token = new_token()
    everything = Role.READ | Role.WRITE | Role.ADMIN
    subject = authenticator(
        tmp_path,
        [Account("a", everything, hash_token(token))],
        anonymous="read,admin",
        admin_networks="127.0.0.0/8,::1",
        write_networks="192.0.2.0/24",
    )
    for address, roles in {LOCAL: Role.READ | Role.WRITE, "::1": Role.READ | Role.ADMIN, "gone": Role.READ}.items():
        session = await subject.authenticate_command([token], address)
        assert session is not None
        assert session.principal.roles == roles
        assert subject.anonymous(address).roles == roles & ~Role.WRITE


def test_certificate_authenticates_account_with_its_name(tmp_path: Path) -> None:
    subject = authenticator(tmp_path, [Account("a", Role.WRITE, CertificateName("DNS=a.example"))])
    session = subject.authenticate_certificate(["CN=other", "DNS=a.example"], LOCAL)
    assert session is not None
    assert session.principal.name == "a"
    assert subject.authenticate_certificate(["CN=a.example", "DNS=b.example"], LOCAL) is None


@pytest.mark.slow
async def test_reload_during_verification_is_not_lost(tmp_path: Path) -> None:
    """A result from the old file must not be cached for the new one."""
    slow = hash_password("correct horse")
    old, new = (Account("a", roles, slow) for roles in (Role.READ, Role.READ | Role.WRITE))
    for before in ([old], []):
        subject = authenticator(tmp_path, before)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.authenticate_header, basic("a", "correct horse"), LOCAL)
            await wait_all_tasks_blocked()
            write_lines(tmp_path / "accounts", [str(new)])
            await subject.reload()
        session = await subject.authenticate_header(basic("a", "correct horse"), LOCAL)
        assert session is not None
        assert session.principal.roles == Role.READ | Role.WRITE


@pytest.mark.slow
async def test_token_sent_as_name_is_not_logged(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `curl -u TOKEN:` sends it."""
    token = new_token()
    subject = authenticator(tmp_path, [Account("a", Role.READ, hash_token(token))])
    for header in (basic(token, ""), basic(f" {token}", "x"), basic(f"x{token}", "")):
        assert await subject.authenticate_header(header, LOCAL) is None
        assert await subject.authenticate_command(["basic", token, "x"], "192.0.2.2") is None
    output = capsys.readouterr()
    assert "login.failed" in output.out + output.err
    assert token[4:20] not in output.out + output.err


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"networks": parse_networks("10.0.0.0/8")}, "network"),
        ({"expires_s": NOW_MS // 1000}, "expired"),
        ({}, "credentials"),
    ],
)
async def test_log_says_why_a_login_failed(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], limits: dict[str, Any], reason: str
) -> None:
    """Regression: operators could not tell a right token from another network from a wrong one."""
    token = new_token()
    subject = authenticator(tmp_path, [Account("agent", Role.WRITE, hash_token(token), **limits)])
    sent = new_token() if reason == "credentials" else token
    assert await subject.authenticate_header(f"Bearer {sent}", LOCAL) is None
    output = capsys.readouterr()
    logged = re.search(r"login.failed.*", output.out + output.err)
    assert logged is not None
    assert reason in logged[0]
    assert ("agent" in logged[0]) == (sent is token)


async def test_verification_results_are_cached(tmp_path: Path) -> None:
    subject = authenticator(tmp_path, [Account("a", Role.READ, quick("correct horse"))])
    assert await subject.authenticate_header(basic("a", "correct horse"), LOCAL) is not None
    first = subject.hashed
    assert await subject.authenticate_header(basic("a", "correct horse"), LOCAL) is not None
    assert await subject.authenticate_header(basic("a", "wrong"), LOCAL) is None
    assert await subject.authenticate_header(basic("a", "wrong"), LOCAL) is None
    assert subject.hashed == first + 1
    assert await subject.authenticate_header(basic("a", "x" * 100_000), LOCAL) is None
    assert subject.hashed == first + 1  # too long for a password


async def test_known_address_goes_first_in_the_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Wrong passwords from many addresses must not delay addresses that have logged in before."""
    turns = LoginQueue(64, max_waiting=5)
    turns.record_success("2001:db8::1")
    went: list[str] = []
    release = trio.Event()

    async def log_in(address: str) -> None:
        try:
            async with turns.slot(address):
                went.append(address)
                await release.wait()
        except TooManyAttempts:
            went.append("sent away")

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(log_in, f"192.0.2.{number}")
            await wait_all_tasks_blocked()
        nursery.start_soon(log_in, "2001:db8::2")  # of the same prefix
        await wait_all_tasks_blocked()
        assert went == ["192.0.2.0", "sent away", "sent away"]
        release.set()
    assert went[3] == "2001:db8::2"
    assert went[4:] == [f"192.0.2.{number}" for number in range(1, 6)]


async def test_cancelled_login_passes_its_slot_on(autojump_clock: MockClock) -> None:
    turns = LoginQueue(64)
    went = []

    async def log_in(number: int, scope: trio.CancelScope) -> None:
        with scope:
            async with turns.slot("192.0.2.1"):
                went.append(number)
                await trio.sleep(1)

    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(log_in, number, scope)
            await wait_all_tasks_blocked()
        scopes[1].cancel()
        scopes[0].cancel()  # in the same pass in which the second one would get the slot
        await trio.sleep(5)
    assert went == [0, 2, 3]


async def test_verified_address_goes_before_others(tmp_path: Path) -> None:
    subject = authenticator(tmp_path, [Account("a", Role.READ, quick("correct horse"))])
    await subject.authenticate_header(basic("a", "wrong"), "192.0.2.9")
    assert not subject.login_queue.has_succeeded("192.0.2.9")
    await subject.authenticate_header(basic("a", "correct horse"), LOCAL)
    assert subject.login_queue.has_succeeded(LOCAL)


async def test_failures_delay_only_their_address(autojump_clock: MockClock) -> None:
    throttle = LoginThrottle(64)
    waits = []
    for _ in range(8):
        began = trio.current_time()
        await throttle.record_failure(LOCAL, "http", "a", "credentials")
        waits.append(round(trio.current_time() - began, 3))
    assert waits == sorted(waits)
    assert waits[0] < waits[-2] == waits[-1]  # up to a limit
    began = trio.current_time()
    await throttle.wait("198.51.100.1")
    assert trio.current_time() == began
    await trio.sleep(3600)
    began = trio.current_time()
    await throttle.record_failure(LOCAL, "http", "a", "credentials")
    assert trio.current_time() - began < 0.2  # failures are forgotten


async def test_many_parallel_attempts_are_refused(autojump_clock: MockClock) -> None:
    throttle = LoginThrottle(64)
    for _ in range(5):
        await throttle.record_failure("2001:db8::1", "http", "a", "credentials")
    allowed = []

    async def guess(host: int) -> None:
        try:
            await throttle.wait(f"2001:db8::{host}")  # a /64 is one client
            allowed.append(host)
        except TooManyAttempts:
            pass

    async with trio.open_nursery() as nursery:
        for host in range(100):
            nursery.start_soon(guess, host)
    assert 0 < len(allowed) < 10


async def test_failures_of_addresses_that_failed_longest_ago_are_forgotten(autojump_clock: MockClock) -> None:
    throttle = LoginThrottle(64, max_tracked=2)

    async def delay_s(address: str) -> float:
        began = trio.current_time()
        await throttle.record_failure(address, "telnet", "", "credentials")
        return trio.current_time() - began

    first = await delay_s("10.0.0.1")
    for host in (2, 3, 1):  # the last one is forgotten by then
        assert await delay_s(f"10.0.0.{host}") == pytest.approx(first)
    assert await delay_s("10.0.0.3") > 1.5 * first  # not forgotten


def test_missing_file_of_accounts_is_an_error(tmp_path: Path) -> None:
    config, _ = read_config(
        [Given("test", "tsd.core.authentication.enable", "true"), Given("test", "tsd.auth.file", str(tmp_path / "no"))]
    )
    with pytest.raises(TsdError, match=str(tmp_path / "no")):
        Authenticator(config, lambda: NOW_MS)


async def test_changed_file_is_reloaded(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """A replaced file, as `tsd token` writes it; an invalid one changes nothing."""
    token, other = new_token(), new_token()
    subject = authenticator(tmp_path, [Account("a", Role.WRITE, hash_token(token))])
    nursery.start_soon(subject.watch)

    write_lines(tmp_path / "accounts", [str(Account("b", Role.WRITE, hash_token(other)))])
    await advance_to_next_poll(mock_clock, RELOAD_INTERVAL_S)
    session = await subject.authenticate_command([other], LOCAL)
    assert session is not None
    write_lines(tmp_path / "accounts", ["nonsense"])
    await advance_to_next_poll(mock_clock, RELOAD_INTERVAL_S)
    assert subject.is_valid(session)
    write_lines(tmp_path / "accounts", [])
    await advance_to_next_poll(mock_clock, RELOAD_INTERVAL_S)
    assert not subject.is_valid(session)
