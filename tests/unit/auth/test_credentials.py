"""What is told of a certificate, and when files of access have changed."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tsd.access.certificates import read_certificate
from tsd.access.files import state_of
from tsd.errors import TsdError

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
UNTIL = datetime(2100, 1, 1, tzinfo=UTC)


def certificate(names: bytes | None) -> bytes:
    """One that is signed by itself; `names` are those of machines, in DER."""
    made = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key()).serial_number(1)
    made = made.not_valid_before(UNTIL - timedelta(days=1)).not_valid_after(UNTIL)
    if names is not None:
        made = made.add_extension(x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, names), critical=False)
    return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (None, ()),
        (b"\x30\x03\x82\x01b", ("b",)),
        (b"\x30\x02\xa3\x00", ()),  # of X.400: the daemon ended, and did not start again
        (b"\x30\x02\xa5\x00", ()),  # of EDI
        (b"nonsense", ()),
    ],
)
def test_names_that_cannot_be_told_are_left_out(names: bytes | None, told: tuple[str, ...]) -> None:
    assert read_certificate(certificate(names)) == ("CN=a", told, UNTIL)


def test_nor_those_that_stand_there_twice() -> None:
    names, other = b"\x30\x03\x82\x01b", b"\x06\x03\x55\x1d\x12"  # the object identifier of issuers' names
    made = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key()).serial_number(1)
    made = made.not_valid_before(UNTIL - timedelta(days=1)).not_valid_after(UNTIL)
    for kind in (x509.SubjectAlternativeName.oid, x509.IssuerAlternativeName.oid):
        made = made.add_extension(x509.UnrecognizedExtension(kind, names), critical=False)
    whole = made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    twice = x509.load_der_x509_certificate(whole.replace(other, b"\x06\x03\x55\x1d\x11"))
    assert read_certificate(twice.public_bytes(serialization.Encoding.PEM)) == ("CN=a", (), UNTIL)


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_none_is_said_to_be_none(pem: bytes) -> None:
    with pytest.raises(TsdError, match="no certificate"):
        read_certificate(pem)


def test_another_owner_or_mode_is_a_change(tmp_path: Path) -> None:
    """A file that was mended by chown was not read again."""
    file = tmp_path / "file"
    assert state_of(file) is None
    file.write_bytes(b"x")
    for change in (lambda: os.chown(file, os.geteuid(), -1), lambda: os.chmod(file, 0o600)):
        before = state_of(file)
        for _ in range(100_000):  # the kernel's clock of files has ticks of some milliseconds
            change()
            if state_of(file) != before:
                break
        assert state_of(file) != before
