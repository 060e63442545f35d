"""The daemon's own certificate: what the log and `stats` show of it."""

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from tsd.errors import TsdError
from tsd.lazy import LazyModule

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = LazyModule("cryptography.x509")  # takes a twentieth of a start, and few daemons have a certificate


class Certificate(NamedTuple):
    """The first certificate of a PEM file."""

    subject: str  # RFC 4514: CN=tsd.example,O=Example
    names: tuple[str, ...]  # DNS names
    expires: datetime  # UTC

    def seconds_left(self, now_ms: int) -> int:
        """Return the remaining validity; negative after expiry."""
        return int(self.expires.timestamp()) - now_ms // 1000


def read_certificate(pem: bytes) -> Certificate:
    """Return the first certificate of a PEM file. Raise TsdError."""
    try:
        first = x509.load_pem_x509_certificates(pem)[0]
        subject, expires = first.subject.rfc4514_string(), first.not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as exc:
        raise TsdError(f"invalid PEM certificate: {exc}") from exc
    # Extensions that OpenSSL accepts and cryptography does not: X.400 or EDI names, duplicate extensions.
    unreadable = (x509.UnsupportedGeneralNameType, x509.DuplicateExtension, ValueError)
    try:
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(names.get_values_for_type(x509.DNSName))
    except (x509.ExtensionNotFound, *unreadable):  # only shown in the log: OpenSSL itself reads the names
        hosts = ()
    return Certificate(subject, hosts, expires)
