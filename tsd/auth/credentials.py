"""Tokens, passwords and certificate names, and their stored hashes.

A token is 256 random bits: it cannot be guessed, so a plain SHA-256 protects it. A password is hashed with scrypt,
which takes 32 MiB and a fifth of a second per attempt.
"""

import hashlib
import hmac
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from secrets import token_urlsafe
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

TOKEN_PREFIX = "tsd_"  # noqa: S105 - lets secret scanners recognize tokens
TOKEN_BYTES = 32
COST, BLOCK, LANES = 15, 8, 3  # of scrypt: blocks of 1 KiB × 2**15, 3 times (the OWASP minimum)
MAX_COST, MAX_BLOCK, MAX_LANES = 17, 16, 8  # limits of the parameters in a file of accounts
CERTIFICATE_KINDS = ("CN", "DNS", "URI", "email")  # of names in a client certificate
MAX_PASSWORD_CHARS = 1024  # longer passwords are refused without hashing
_TOKEN = re.compile(r"tsd_[A-Za-z0-9_-]{43}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Token(NamedTuple):
    """The SHA-256 of a token, in hexadecimal."""

    digest: str

    def __str__(self) -> str:
        return f"sha256:{self.digest}"


class Password(NamedTuple):
    """The scrypt hash of a password."""

    cost: int  # log2 of the number of blocks
    block: int
    lanes: int
    salt: bytes
    key: bytes

    def __str__(self) -> str:
        return f"scrypt:{self.cost}:{self.block}:{self.lanes}:{_base64(self.salt)}:{_base64(self.key)}"

    def matches(self, password: str) -> bool:
        """Return whether this is the hash of a password. Blocks: call it in a thread."""
        return hmac.compare_digest(self.key, _scrypt(password, self))


class CertificateName(NamedTuple):
    """A name in a client certificate, as `certificate_names` returns it."""

    name: str

    def __str__(self) -> str:
        return f"certificate:{quote(self.name, safe='=:/@.*')}"


Secret = Token | Password | CertificateName


def new_token() -> str:
    """Return a new random token."""
    return TOKEN_PREFIX + token_urlsafe(TOKEN_BYTES)


def looks_like_token(text: str) -> bool:
    """Return whether a text has the format of a token."""
    return _TOKEN.fullmatch(text) is not None


def hash_token(token: str) -> Token:
    """Return the hash of a token."""
    return Token(hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest())


def hash_password(password: str) -> Password:
    """Return the hash of a password. Blocks: call it in a thread."""
    empty = Password(COST, BLOCK, LANES, os.urandom(16), b"")
    return empty._replace(key=_scrypt(password, empty))


DUMMY_PASSWORD = Password(COST, BLOCK, LANES, bytes(16), bytes(32))
"""Matches no password. Unknown names are verified against it, so that they take as long as known ones."""


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


def parse_secret(text: str) -> Secret:
    """Parse a secret as `str` formats it. Raise ValueError."""
    kind, _, rest = text.partition(":")
    if kind == "sha256" and _DIGEST.fullmatch(rest):
        return Token(rest)
    if kind == "certificate":
        return parse_certificate_name(unquote(rest))
    words = rest.split(":")
    if kind == "scrypt" and len(words) == 5:
        cost, block, lanes = map(int, words[:3])
        found = Password(cost, block, lanes, b64decode(words[3], validate=True), b64decode(words[4], validate=True))
        if 10 <= cost <= MAX_COST and 1 <= block <= MAX_BLOCK and 1 <= lanes <= MAX_LANES and len(found.key) == 32:
            return found
    raise ValueError("wanted sha256:…, scrypt:… or certificate:…, as `tsd token add` writes them")


def parse_certificate_name(text: str) -> CertificateName:
    """Return a name that `certificate_names` can yield. Raise ValueError for others: no certificate has them."""
    kind, _, value = text.partition("=")
    if kind not in CERTIFICATE_KINDS or not value:
        raise ValueError("wanted CN=…, DNS=…, URI=… or email=… as the name in a certificate")
    return CertificateName(text)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def certificate_names(certificate: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the names of a verified client certificate (`SSLObject.getpeercert`) in the form of the file of accounts:
    the common name, and the alternative names of type DNS, URI and email.

    >>> list(certificate_names({"subject": ((("commonName", "agent"),),), "subjectAltName": (("DNS", "a.example"),)}))
    ['CN=agent', 'DNS=a.example']
    """
    if not certificate:
        return
    for part in certificate.get("subject", ()):
        for kind, value in part:
            if kind == "commonName":
                yield f"CN={value}"
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in CERTIFICATE_KINDS[1:]:
            yield f"{kind}={value}"
