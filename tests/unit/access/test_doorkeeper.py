"""Who gets in, and as whom; and what trying costs those who try."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.looks import next_look
from tsd.access.accounts import Account, write_lines
from tsd.access.doorkeeper import LOOK_S, Doorkeeper
from tsd.access.guesses import LONGEST_S, Guesses, TooManyTries
from tsd.access.networks import read_networks
from tsd.access.roles import Role
from tsd.access.secret import Named, Password, kept_password, kept_token, new_token
from tsd.access.turns import MOST_WAITING, Turns
from tsd.config import Given, read_settings
from tsd.errors import TsdError

NOW_MS = 1_800_000_000_000
HERE = "192.0.2.1"


def quick(password: str) -> Password:
    """What is kept of a password, as cheap as the file allows it."""
    return Password(10, 1, 1, b"salt", hashlib.scrypt(password.encode(), salt=b"salt", n=1024, r=1, p=1, dklen=32))


def doorkeeper(folder: Path, accounts: Sequence[Account] = (), **settings: str) -> Doorkeeper:
    """One with these accounts; settings of tsd.access by the end of their keys."""
    write_lines(folder / "accounts", map(str, accounts))
    given = {"tsd.core.authentication.enable": "true", "tsd.auth.file": str(folder / "accounts")}
    given |= {f"tsd.access.{key}": value for key, value in settings.items()}
    config, _ = read_settings(Given("test", key, value) for key, value in given.items())
    return Doorkeeper(config, lambda: NOW_MS)


def basic(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()


async def test_a_token_shows_its_account_by_each_way(tmp_path: Path) -> None:
    token = new_token()
    keeper = doorkeeper(tmp_path, [Account("agent", Role.WRITE, kept_token(token))])
    for header in (f"Bearer {token}", f"bearer  {token}", basic("agent", token), basic("", token)):
        badge = await keeper.by_header(header, HERE)
        assert badge is not None
        assert badge.principal == ("agent", Role.WRITE)
    for words in ([token], ["basic", "agent", token]):
        assert await keeper.by_words(words, HERE) is not None
    assert keeper.statistics().succeeded == {"telnet": 2, "http": 4}


async def test_what_is_no_secret_of_anybody_shows_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    token = new_token()
    keeper = doorkeeper(tmp_path, [Account("agent", Role.WRITE, kept_token(token))])
    wrong = ["", "Bearer", f"Bearer {new_token()}", f"Bearer {token} x", f"Digest {token}", basic("other", token)]
    wrong += ["Basic", "Basic ////", "Basic ====", basic("agent", ""), f"Bearer {kept_token(token).digest}"]
    for header in wrong:
        assert await keeper.by_header(header, HERE) is None, header
    for words in ([], [""], ["basic"], ["basic", token], ["basic", "other", token], [token, token], ["digest", token]):
        assert await keeper.by_words(words, HERE) is None, words
    assert keeper.statistics().denied == {"telnet": 7, "http": len(wrong)}


async def test_a_secret_is_good_until_it_expires_and_from_its_networks(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    token = new_token()
    account = Account("agent", Role.WRITE, kept_token(token), NOW_MS / 1000 + 1, read_networks("192.0.2.0/24"))
    keeper = doorkeeper(tmp_path, [account])
    assert await keeper.by_header(f"Bearer {token}", HERE) is not None
    assert await keeper.by_header(f"Bearer {token}", "198.51.100.1") is None
    late = doorkeeper(tmp_path, [account._replace(expires_s=NOW_MS / 1000)])
    assert await late.by_header(f"Bearer {token}", HERE) is None


async def test_what_was_taken_back_holds_no_longer(tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    accounts = [Account(name, Role.WRITE, kept_token(one)) for name, one in (("a", token), ("b", other))]
    keeper = doorkeeper(tmp_path, accounts)
    badges = [await keeper.by_words([one], HERE) for one in (token, other)]
    write_lines(tmp_path / "accounts", [str(accounts[1])])
    await keeper.reload()
    assert [badge is not None and keeper.holds(badge) for badge in badges] == [False, True]
    (tmp_path / "accounts").chmod(0o644)
    with pytest.raises(TsdError, match="its mode is 644"):
        await keeper.reload()
    assert await keeper.by_words([other], HERE) is not None  # what was read before holds


async def test_roles_act_from_their_networks_only(tmp_path: Path) -> None:
    token = new_token()
    everything = Role.READ | Role.WRITE | Role.ADMIN
    keeper = doorkeeper(
        tmp_path,
        [Account("a", everything, kept_token(token))],
        anonymous="read,admin",
        admin_networks="127.0.0.0/8,::1",
        write_networks="192.0.2.0/24",
    )
    for address, roles in {HERE: Role.READ | Role.WRITE, "::1": Role.READ | Role.ADMIN, "gone": Role.READ}.items():
        badge = await keeper.by_words([token], address)
        assert badge is not None
        assert badge.principal.roles == roles
        assert keeper.stranger(address).roles == roles & ~Role.WRITE


def test_a_certificate_shows_the_account_that_has_one_of_its_names(tmp_path: Path) -> None:
    keeper = doorkeeper(tmp_path, [Account("a", Role.WRITE, Named("DNS=a.example"))])
    badge = keeper.by_certificate(["CN=other", "DNS=a.example"], HERE)
    assert badge is not None
    assert badge.principal.name == "a"
    assert keeper.by_certificate(["CN=a.example", "DNS=b.example"], HERE) is None


async def test_a_change_of_the_file_while_a_password_is_worked_on_is_not_forgotten(tmp_path: Path) -> None:
    """What was found out by the old file would else stand until the next change: somebody would be shut out."""
    slow = kept_password("correct horse")
    old, new = (Account("a", roles, slow) for roles in (Role.READ, Role.READ | Role.WRITE))
    for before in ([old], []):
        keeper = doorkeeper(tmp_path, before)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.by_header, basic("a", "correct horse"), HERE)
            await wait_all_tasks_blocked()
            write_lines(tmp_path / "accounts", [str(new)])
            await keeper.reload()
        badge = await keeper.by_header(basic("a", "correct horse"), HERE)
        assert badge is not None
        assert badge.principal.roles == Role.READ | Role.WRITE


async def test_a_token_in_the_place_of_a_name_is_not_logged(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `curl -u TOKEN:` has it."""
    token = new_token()
    keeper = doorkeeper(tmp_path, [Account("a", Role.READ, kept_token(token))])
    for header in (basic(token, ""), basic(f" {token}", "x"), basic(f"x{token}", "")):
        assert await keeper.by_header(header, HERE) is None
        assert await keeper.by_words(["basic", token, "x"], "192.0.2.2") is None
    said = capsys.readouterr()
    assert "could not show who it is" in said.out + said.err
    assert token[4:20] not in said.out + said.err


async def test_a_password_is_worked_on_once_and_a_wrong_one_too(tmp_path: Path) -> None:
    keeper = doorkeeper(tmp_path, [Account("a", Role.READ, quick("correct horse"))])
    assert await keeper.by_header(basic("a", "correct horse"), HERE) is not None
    first = keeper.hashed
    assert await keeper.by_header(basic("a", "correct horse"), HERE) is not None
    assert await keeper.by_header(basic("a", "wrong"), HERE) is None
    assert await keeper.by_header(basic("a", "wrong"), HERE) is None
    assert keeper.hashed == first + 1
    assert await keeper.by_header(basic("a", "x" * 100_000), HERE) is None
    assert keeper.hashed == first + 1  # nobody has such a password


async def test_who_has_signed_in_before_goes_first(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A crowd that sends wrong passwords from many addresses used to have everybody wait for it, or be sent away."""
    turns = Turns(64)
    turns.note_good("2001:db8::1")
    went: list[str] = []
    release = trio.Event()

    async def sign_in(address: str) -> None:
        try:
            async with turns.turn(address):
                went.append(address)
                await release.wait()
        except TooManyTries:
            went.append("sent away")

    async with trio.open_nursery() as nursery:
        for number in range(MOST_WAITING + 3):
            nursery.start_soon(sign_in, f"192.0.2.{number}")
            await wait_all_tasks_blocked()
        nursery.start_soon(sign_in, "2001:db8::2")  # its neighbour
        await wait_all_tasks_blocked()
        assert went == ["192.0.2.0", "sent away", "sent away"]
        release.set()
    assert went[3] == "2001:db8::2"
    assert went[4:] == [f"192.0.2.{number}" for number in range(1, MOST_WAITING + 1)]


async def test_who_goes_away_leaves_its_turn_to_the_next(autojump_clock: MockClock) -> None:
    turns = Turns(64)
    went = []

    async def sign_in(number: int, scope: trio.CancelScope) -> None:
        with scope:
            async with turns.turn("192.0.2.1"):
                went.append(number)
                await trio.sleep(1)

    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(sign_in, number, scope)
            await wait_all_tasks_blocked()
        scopes[1].cancel()
        scopes[0].cancel()  # in the moment in which the second one would be called
        await trio.sleep(5)
    assert went == [0, 2, 3]


async def test_a_right_password_makes_its_address_known(tmp_path: Path) -> None:
    keeper = doorkeeper(tmp_path, [Account("a", Role.READ, quick("correct horse"))])
    await keeper.by_header(basic("a", "wrong"), "192.0.2.9")
    assert not keeper._hashing.knows("192.0.2.9")
    await keeper.by_header(basic("a", "correct horse"), HERE)
    assert keeper._hashing.knows(HERE)


async def test_who_fails_waits_longer_each_time_and_others_do_not(autojump_clock: MockClock) -> None:
    guesses = Guesses(64)
    waits = []
    for _ in range(8):
        began = trio.current_time()
        await guesses.failed(HERE, "http", "a")
        waits.append(round(trio.current_time() - began, 3))
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_S
    began = trio.current_time()
    await guesses.wait_turn("198.51.100.1")
    assert trio.current_time() == began
    await trio.sleep(3600)
    began = trio.current_time()
    await guesses.failed(HERE, "http", "a")
    assert trio.current_time() - began < 0.2  # all is forgiven


async def test_many_passwords_of_one_address_at_once_are_not_heard(autojump_clock: MockClock) -> None:
    guesses = Guesses(64)
    for _ in range(5):
        await guesses.failed("2001:db8::1", "http", "a")
    heard = []

    async def guess(host: int) -> None:
        try:
            await guesses.wait_turn(f"2001:db8::{host}")  # a /64 is one household
            heard.append(host)
        except TooManyTries:
            pass

    async with trio.open_nursery() as nursery:
        for host in range(100):
            nursery.start_soon(guess, host)
    assert 0 < len(heard) < 10


async def test_what_is_remembered_is_bounded(autojump_clock: MockClock) -> None:
    guesses = Guesses(64)
    async with trio.open_nursery() as nursery:
        for at in range(4200):
            nursery.start_soon(guesses.failed, f"10.0.{at >> 8}.{at & 255}", "telnet", "")
        await wait_all_tasks_blocked()
        assert guesses.remembered == 4096


def test_without_a_file_nobody_starts(tmp_path: Path) -> None:
    config, _ = read_settings(
        [Given("test", "tsd.core.authentication.enable", "true"), Given("test", "tsd.auth.file", str(tmp_path / "no"))]
    )
    with pytest.raises(TsdError, match="No such file"):
        Doorkeeper(config, lambda: NOW_MS)


async def test_a_change_of_the_file_is_noticed(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """Another file in its place, as `tsd token` puts one; and a bad one changes nothing."""
    token, other = new_token(), new_token()
    keeper = doorkeeper(tmp_path, [Account("a", Role.WRITE, kept_token(token))])
    nursery.start_soon(keeper.watch)

    write_lines(tmp_path / "accounts", [str(Account("b", Role.WRITE, kept_token(other)))])
    await next_look(mock_clock, LOOK_S)
    badge = await keeper.by_words([other], HERE)
    assert badge is not None
    write_lines(tmp_path / "accounts", ["nonsense"])
    await next_look(mock_clock, LOOK_S)
    assert keeper.holds(badge)
    write_lines(tmp_path / "accounts", [])
    await next_look(mock_clock, LOOK_S)
    assert not keeper.holds(badge)
