"""Certificates, and changes of files."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tsd.auth.accounts import file_state
from tsd.auth.certificate import read_certificate
from tsd.errors import TsdError

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
UNTIL = datetime(2100, 1, 1, tzinfo=UTC)


def certificate(names: bytes | None) -> bytes:
    """Return a self-signed certificate; `names` is the DER of its alternative names."""
    made = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key()).serial_number(1)
    made = made.not_valid_before(UNTIL - timedelta(days=1)).not_valid_after(UNTIL)
    if names is not None:
        made = made.add_extension(x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, names), critical=False)
    return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (None, ()),
        (b"\x30\x03\x82\x01b", ("b",)),
        (b"\x30\x02\xa3\x00", ()),  # X.400
        (b"\x30\x02\xa5\x00", ()),  # EDI
        (b"nonsense", ()),
    ],
)
def test_unreadable_certificate_names_are_skipped(names: bytes | None, hosts: tuple[str, ...]) -> None:
    assert read_certificate(certificate(names)) == ("CN=a", hosts, UNTIL)


def test_duplicate_certificate_extension_is_skipped() -> None:
    names, other = b"\x30\x03\x82\x01b", b"\x06\x03\x55\x1d\x12"  # the object identifier of issuer alternative names
    made = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key()).serial_number(1)
    made = made.not_valid_before(UNTIL - timedelta(days=1)).not_valid_after(UNTIL)
    for kind in (x509.SubjectAlternativeName.oid, x509.IssuerAlternativeName.oid):
        made = made.add_extension(x509.UnrecognizedExtension(kind, names), critical=False)
    whole = made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    twice = x509.load_der_x509_certificate(whole.replace(other, b"\x06\x03\x55\x1d\x11"))
    assert read_certificate(twice.public_bytes(serialization.Encoding.PEM)) == ("CN=a", (), UNTIL)


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_invalid_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(TsdError):
        read_certificate(pem)


def test_owner_and_mode_change_the_file_state(tmp_path: Path) -> None:
    """A file repaired with chown has to be read again."""
    file = tmp_path / "file"
    assert file_state(file) is None
    file.write_bytes(b"x")
    for change in (lambda: os.chown(file, os.geteuid(), -1), lambda: os.chmod(file, 0o600)):
        before = file_state(file)
        for _ in range(100_000):  # file times have a resolution of milliseconds
            change()
            if file_state(file) != before:
                break
        assert file_state(file) != before
