"""What shows who somebody is, and how it is kept: never as it is.

A token is 256 bits out of the machine's own generator. Nobody finds it by trying, however fast the trying is, so a
plain SHA-256 keeps it. A password is what people think of: scrypt makes each try cost 32 MiB and a fifth of a second.
"""

import hashlib
import hmac
import os
import re
from base64 import b64decode, b64encode
from secrets import token_urlsafe
from typing import NamedTuple
from urllib.parse import quote, unquote

PREFIX = "tsd_"  # of tokens: programs that look for leaked secrets know them by it
TOKEN_BYTES = 32
COST, BLOCK, LANES = 15, 8, 3  # of scrypt: 2**15 blocks of 1 KiB, three times over (OWASP's least)
MOST_COST, MOST_BLOCK, MOST_LANES = 17, 16, 8  # that a file may ask for
LONGEST = 1024  # characters of a password that is looked at
_TOKEN = re.compile(r"tsd_[A-Za-z0-9_-]{43}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Token(NamedTuple):
    """A token's SHA-256, in hexadecimal."""

    digest: str

    def __str__(self) -> str:
        return f"sha256:{self.digest}"


class Password(NamedTuple):
    """What scrypt made of a password."""

    cost: int  # a power of two
    block: int
    lanes: int
    salt: bytes
    key: bytes

    def __str__(self) -> str:
        return f"scrypt:{self.cost}:{self.block}:{self.lanes}:{_text(self.salt)}:{_text(self.key)}"

    def fits(self, password: str) -> bool:
        """Whether it is this one. Takes its time, and memory: for a thread."""
        return hmac.compare_digest(self.key, _scrypt(password, self))


class Named(NamedTuple):
    """A name in a certificate that one of our authorities has signed, as `names_in` gives them."""

    name: str

    def __str__(self) -> str:
        return f"certificate:{quote(self.name, safe='=:/@.*')}"


Secret = Token | Password | Named


def new_token() -> str:
    """A token nobody has."""
    return PREFIX + token_urlsafe(TOKEN_BYTES)


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of our tokens."""
    return _TOKEN.fullmatch(text) is not None


def kept_token(token: str) -> Token:
    """What is kept of a token."""
    return Token(hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest())


def kept_password(password: str) -> Password:
    """What is kept of a password. Takes its time."""
    empty = Password(COST, BLOCK, LANES, os.urandom(16), b"")
    return empty._replace(key=_scrypt(password, empty))


NOBODYS = Password(COST, BLOCK, LANES, bytes(16), bytes(32))
"""No password fits. Held against what is tried for a name that is not there: it takes as long as any other."""


def _scrypt(password: str, form: Password) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=form.salt,
        n=1 << form.cost,
        r=form.block,
        p=form.lanes,
        maxmem=(128 * form.block << form.cost) + (1 << 20) + 128 * form.block * form.lanes,
        dklen=32,
    )


def read_secret(text: str) -> Secret:
    """What `str` of one has made; raises ValueError."""
    kind, _, rest = text.partition(":")
    if kind == "sha256" and _DIGEST.fullmatch(rest):
        return Token(rest)
    if kind == "certificate" and "=" in rest:
        return Named(unquote(rest))
    words = rest.split(":")
    if kind == "scrypt" and len(words) == 5:
        cost, block, lanes = map(int, words[:3])
        found = Password(cost, block, lanes, b64decode(words[3], validate=True), b64decode(words[4], validate=True))
        if 10 <= cost <= MOST_COST and 1 <= block <= MOST_BLOCK and 1 <= lanes <= MOST_LANES and len(found.key) == 32:
            return found
    raise ValueError("wanted sha256:…, scrypt:… or certificate:…, as `tsd token add` writes them")


def _text(data: bytes) -> str:
    return b64encode(data).decode()
