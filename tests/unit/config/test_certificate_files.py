"""Errors of a certificate's files."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tsd.config.certificate_files import load_certificate
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
