"""Cassandra with passwords and TLS: what is right is used, and what is wrong is named in one line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from tests.e2e.command import Tsd, on_cassandra
from tests.peers.cassandra import RunningCassandra

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
T = 1356998400
PREFIX = "tsd.storage.cassandra."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings for a Cassandra with a password and TLS. Its certificate names 127.0.0.2, not its address."""
    folder = tmp_path_factory.mktemp("guarded")
    authority, other = trustme.CA(), trustme.CA()
    leaf = authority.issue_cert("127.0.0.2")
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    chain = [x509.load_pem_x509_certificate(pem.bytes()) for pem in leaf.cert_chain_pems]
    store = folder / "node.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"node", key, chain[0], chain[1:], BestAvailableEncryption(b"cassandra"))
    )
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    (folder / "password").write_text("cassandra\n")
    (folder / "wrong").write_text("wrong\n")
    for name in ("password", "wrong"):
        (folder / name).chmod(0o600)
    own = RunningCassandra(folder / "cassandra", "--password", f"--keystore={store}")
    settings = on_cassandra(own) | {
        f"{PREFIX}user": "cassandra",
        f"{PREFIX}password": str(folder / "password"),
        f"{PREFIX}tls.ca": str(folder / "ca.pem"),
        "tsd.storage.flush_interval": "100",
    }
    try:
        tsd = Tsd(folder / "state", settings)
        while tsd.run("check-config").status:
            pass  # Cassandra makes the user after it accepts clients
        yield settings
    finally:
        own.kill()


@pytest.mark.parametrize("layout", ["opentsdb", "kairosdb"])
def test_points_are_stored_with_password_and_tls(guarded: dict[str, str], layout: str, tmp_path: Path) -> None:
    names = {"tsd.storage.layout": layout, f"{PREFIX}keyspace": layout}
    tsd = Tsd(tmp_path / "state", guarded | names)
    absent = tsd.run("check-config")  # tables are named, and may be made later
    assert (absent.status, "tsd create-tables" in absent.err, layout in absent.err) == (0, True, True)
    assert tsd.run("create-tables").status == 0
    present = tsd.run("check-config")
    assert (present.status, "no problem" in present.err) == (0, True)
    with tsd.serve() as served:
        assert served.send_lines(f"put a.b {T} 1 host=a\n".encode()) == b"synced 1\n"
        served.flush()


WRONG = {
    "password": ({f"{PREFIX}password": "wrong"}, "refuses the user or the password"),
    "authority": ({f"{PREFIX}tls.ca": "other.pem"}, "certificate verify failed"),
    "name": ({f"{PREFIX}tls.check_names": "true"}, "127.0.0.1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_access_is_named_in_one_line(guarded: dict[str, str], what: str, tmp_path: Path) -> None:
    changed, named = WRONG[what]
    folder = Path(guarded[f"{PREFIX}tls.ca"]).parent
    values = {key: str(folder / value) if (folder / value).exists() else value for key, value in changed.items()}
    tsd = Tsd(tmp_path / "state", guarded | {"tsd.storage.layout": "kairosdb"} | values)
    for words in (["check-config"], ["create-tables"]):
        done = tsd.run(*words)
        assert done.status == 3, done
        assert named in done.err.splitlines()[-1]
        assert len(done.err.splitlines()) == 1
    with tsd.serve() as served:
        assert named in served.await_event("kairosdb.tables_unusable")["error"]
