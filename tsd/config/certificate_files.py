"""Load the files of a certificate and its private key, with errors that name the file. OpenSSL's do not."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from tsd.errors import TsdError

CERTIFICATE_END, KEY_END = b"CERTIFICATE-----", b"PRIVATE KEY-----"  # of the first line of PEM
_OF_OTHER = ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED")  # OpenSSL's, the second for a key of another type


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate with its private key, which is in the same file if `key` is empty. Raise TsdError."""
    for name, end, what in (
        (certificate, CERTIFICATE_END, "certificate"),
        (key or certificate, KEY_END, "private key"),
    ):
        with named_errors(name), open(name, "rb") as file:
            if end not in file.read():
                raise TsdError(f"{name}: got no {what}, wanted one in PEM form")

    def no_password() -> str:
        raise TsdError(f"{key or certificate}: the key is encrypted; wanted a key without a password")

    names = " and ".join(filter(None, (certificate, key)))
    with named_errors(names):
        try:
            context.load_cert_chain(certificate, key or None, password=no_password)
        except ssl.SSLError as exc:
            if exc.reason in _OF_OTHER:
                raise TsdError(f"{names}: the private key does not belong to the certificate") from exc
            raise


def client_context(authority: str = "") -> ssl.SSLContext:
    """Return the settings of a client that trusts the authorities in a file, or those of the system. Raise TsdError."""
    with named_errors(authority):
        context = ssl.create_default_context(cafile=authority or None)
    # Since Python 3.13 it refuses authorities without key usage: those of `openssl req -x509` and of keytool.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Raise the block's errors of files and of OpenSSL as TsdErrors that begin with a name."""
    try:
        yield
    except OSError as exc:  # includes ssl.SSLError
        raise TsdError(f"{name}: {exc.strerror or exc}") from exc
