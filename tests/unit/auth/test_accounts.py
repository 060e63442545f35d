"""The file of accounts: valid and invalid lines, and unsafe files."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tsd.auth.accounts import Account, parse_account, parse_time, read_accounts, write_lines
from tsd.auth.credentials import CertificateName, Password, Token, hash_token, looks_like_token, new_token, parse_secret
from tsd.auth.networks import ANY, parse_networks
from tsd.auth.roles import Role
from tsd.errors import TsdError

TOKEN = Token("ab" * 32)
SMALL = Password(10, 1, 1, b"salt", bytes(32))

ACCOUNTS = [
    Account("agent", Role.WRITE, TOKEN),
    Account("a.b_c@d-e", Role.READ | Role.ADMIN, SMALL, 1_900_000_000.0),
    Account("no-roles-yet", Role.NONE | Role.READ, CertificateName("CN=Some Name, #1: %")),
    Account("here", Role.READ, TOKEN, parse_time("2027-01-01"), parse_networks("10.0.0.0/8,fd00::/8")),
]


@pytest.mark.parametrize("account", ACCOUNTS, ids=lambda account: account.name)
def test_account_line_round_trip(account: Account) -> None:
    assert parse_account(f"{account}  # a remark") == account


def test_empty_line_is_no_account() -> None:
    assert parse_account("") is parse_account("  # all of it a remark") is None


BAD = {
    "agent write": "NAME ROLES SECRET",
    f"a:b write {TOKEN}": "'a:b'",
    f"-a write {TOKEN}": "'-a'",
    f"{'a' * 65} write {TOKEN}": "a" * 65,
    f"a writer {TOKEN}": "'writer'",
    "a write sha256:abc": "sha256:",
    "a write hunter2": "sha256:",
    "a write certificate:agent": "DNS=",
    "a write certificate:cn=agent": "DNS=",
    "a write certificate:CN=": "DNS=",
    "a write scrypt:30:8:1:AAAA:AAAA": "sha256:",
    f"a write {TOKEN} expires=tomorrow": "tomorrow",
    f"a write {TOKEN} networks=": "networks=",
    f"a write {TOKEN} expires=soon": "'soon'",
    f"a write {TOKEN} networks=10.0.0.1/8": "10.0.0.1/8",
    f"a write {TOKEN} colour=red": "'colour=red'",
}


@pytest.mark.parametrize(("line", "named"), BAD.items(), ids=range(len(BAD)))
def test_invalid_line_is_refused(line: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        parse_account(line)


def test_invalid_line_rejects_the_file_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "accounts"
    write_lines(path, [str(ACCOUNTS[0]), "alice read correct-horse", "bob"])
    with pytest.raises(TsdError) as caught:
        read_accounts(path)
    assert "line 2" in str(caught.value)
    assert "line 3" in str(caught.value)
    assert "horse" not in str(caught.value)


def _as_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


UNSAFE: dict[str, tuple[Callable[[Path], object], str]] = {
    "others read it": (lambda path: path.chmod(0o604), r"\b604\b"),
    "others write it": (lambda path: path.chmod(0o602), r"\b602\b"),
    "the group writes it": (lambda path: path.chmod(0o660), r"\b660\b"),
    "nothing is there": (lambda path: path.unlink(), os.strerror(errno.ENOENT)),
    "it is a folder": (_as_folder, os.strerror(errno.EISDIR)),
    "it is a pipe": (_as_pipe, "accounts"),
    "it leads nowhere": (_as_link_to_nowhere, os.strerror(errno.ENOENT)),
    "it is too large": (lambda path: os.truncate(path, 17 << 20), rf"\b{16 << 20}\b"),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_unsafe_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "accounts"
    write_lines(path, [str(ACCOUNTS[0])])
    UNSAFE[kind][0](path)
    with pytest.raises(TsdError, match=UNSAFE[kind][1]):
        read_accounts(path)


def test_symbolic_link_stays_one(tmp_path: Path) -> None:
    """Otherwise a token revoked through the link would stay valid for a daemon that reads the target."""
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "accounts"
    write_lines(file, ["a read sha256:" + "0" * 64])
    (tmp_path / "link").symlink_to(file)
    write_lines(tmp_path / "link", [])
    assert read_accounts(file) == []
    assert (tmp_path / "link").is_symlink()


def test_new_file_is_private_and_group_read_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "accounts"
    write_lines(path, [])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_lines(path, [str(ACCOUNTS[0])])
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_accounts(path) == ACCOUNTS[:1]
    assert [one.name for one in tmp_path.iterdir()] == ["accounts"]


def test_tokens_are_recognized_and_stored_as_hashes() -> None:
    token = new_token()
    assert looks_like_token(token)
    assert not looks_like_token(token + "x")
    assert token not in str(hash_token(token))
    assert parse_secret(str(hash_token(token))) == hash_token(token)


def test_ipv4_mapped_networks_match_ipv4() -> None:
    networks = parse_networks("10.0.0.0/8, ::ffff:192.0.2.0/120, 2001:db8::/32")
    inside = ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::1", "2001:db8::1%eth0")
    outside = ("11.0.0.1", "::1", "::ffff:11.0.0.1", "2001:db9::1", "here", "gone", "", "10.1.2.3.4")
    assert [networks.has(address) for address in inside] == [True] * len(inside)
    assert [networks.has(address) for address in outside] == [False] * len(outside)
    assert ANY.has("gone")
