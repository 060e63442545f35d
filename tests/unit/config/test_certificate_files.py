"""Errors of a certificate's files."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tsd.config.certificate_files import client_context, load_certificate
from tsd.errors import TsdError

AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)


def load(folder: Path, certificate: str, key: str = "") -> None:
    names = str(folder / certificate), str(folder / key) if key else ""
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *names)


def issue(folder: Path, name: str, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
    leaf = AUTHORITY.issue_cert("one.test", key_type=kind)
    leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    leaf.private_key_pem.write_to_path(folder / f"{name}.key")


@pytest.mark.parametrize("kind", trustme.KeyType)
def test_key_of_another_certificate_is_named_with_the_certificate(kind: trustme.KeyType, tmp_path: Path) -> None:
    """Regression: the error was OpenSSL's, for a key of another type that there is no certificate."""
    issue(tmp_path, "one")
    issue(tmp_path, "other", kind)
    load(tmp_path, "one.pem", "one.key")
    with pytest.raises(TsdError) as caught:
        load(tmp_path, "one.pem", "other.key")
    assert all(str(tmp_path / name) in str(caught.value) for name in ("one.pem", "other.key"))
    assert "SSL" not in str(caught.value)
    assert "X509" not in str(caught.value)
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "one.pem").read_bytes() + (tmp_path / "one.key").read_bytes())
    load(tmp_path, "both.pem")


def test_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    """Regression: the driver of Cassandra asked for the password on the terminal."""
    issue(tmp_path, "one")
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    with pytest.raises(TsdError, match=str(tmp_path / "locked.key")):
        load(tmp_path, "one.pem", "locked.key")


@pytest.mark.parametrize("missing", ["one.pem", "one.key"])
def test_missing_file_is_named_alone(missing: str, tmp_path: Path) -> None:
    issue(tmp_path, "one")
    (tmp_path / missing).unlink()
    with pytest.raises(TsdError) as caught:
        load(tmp_path, "one.pem", "one.key")
    assert [name for name in ("one.pem", "one.key") if str(tmp_path / name) in str(caught.value)] == [missing]


def issue_plainly(folder: Path) -> None:
    """Write an authority as `openssl req -x509` makes it, without key usage, and a certificate that it signed."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "one.test")]
    now = datetime.now(UTC)
    for name, key, extension in (
        ("authority", keys[0], x509.BasicConstraints(ca=True, path_length=None)),
        ("one", keys[1], x509.SubjectAlternativeName([x509.DNSName("one.test")])),
    ):
        builder = x509.CertificateBuilder(
            names[0], names[key is keys[1]], key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key())
        signed = builder.add_extension(extension, critical=True).add_extension(signer, critical=False)
        certificate = signed.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.pem").write_bytes(certificate)
    (folder / "one.key").write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Let two contexts do a handshake in memory. Raise SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in waiting * 4:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert waiting[0].getpeercert()


def test_authority_without_key_usage_is_trusted(tmp_path: Path) -> None:
    """Regression: Python 3.13 and later refuse it, and Cassandra could not be reached."""
    issue_plainly(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(server, str(tmp_path / "one.pem"), str(tmp_path / "one.key"))
    shake_hands(client_context(str(tmp_path / "authority.pem")), server, "one.test")


def test_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    issue_plainly(tmp_path)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "other.pem")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(server, str(tmp_path / "one.pem"), str(tmp_path / "one.key"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(client_context(str(tmp_path / "other.pem")), server, "one.test")


def test_missing_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(TsdError, match=str(tmp_path / "authority.pem")):
        client_context(str(tmp_path / "authority.pem"))
