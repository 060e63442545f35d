"""What a certificate says: until when it holds, and for whom."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from cryptography import x509

from tsd.errors import TsdError

# Extensions that OpenSSL takes and cryptography does not: names of X.400 or EDI among those of machines, two of a kind.
_UNREADABLE = (x509.UnsupportedGeneralNameType, x509.DuplicateExtension, ValueError)


class Certificate(NamedTuple):
    """The first certificate of a PEM file."""

    subject: str  # RFC 4514: CN=tsd.example,O=Example
    names: tuple[str, ...]  # of machines
    expires: datetime  # UTC

    def seconds_left(self, now_ms: int) -> int:
        """How long it still holds; negative once it does not."""
        return int(self.expires.timestamp()) - now_ms // 1000


def read_certificate(pem: bytes) -> Certificate:
    """The first certificate of a PEM file. Raises TsdError."""
    try:
        first = x509.load_pem_x509_certificates(pem)[0]
        told = first.subject.rfc4514_string(), first.not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as exc:
        raise TsdError(f"no certificate in PEM form: {exc}") from exc
    try:
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(names.get_values_for_type(x509.DNSName))
    except (x509.ExtensionNotFound, *_UNREADABLE):  # it is OpenSSL that uses them; here they are only told
        hosts = ()
    return Certificate(told[0], hosts, told[1])


def names_in(shown: Mapping[str, Any] | None) -> Iterator[str]:
    """The names that a client's verified certificate (`SSLObject.getpeercert`) has, as the file of accounts writes
    them: its common name, and its alternative names of machines, URIs and mailboxes.

    >>> list(names_in({"subject": ((("commonName", "agent"),),), "subjectAltName": (("DNS", "a.example"),)}))
    ['CN=agent', 'DNS=a.example']
    """
    if not shown:
        return
    for part in shown.get("subject", ()):
        for kind, value in part:
            if kind == "commonName":
                yield f"CN={value}"
    for kind, value in shown.get("subjectAltName", ()):
        if kind in ("DNS", "URI", "email"):
            yield f"{kind}={value}"
