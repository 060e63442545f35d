"""Authentication and authorization over the network: logins, refusals and revocation."""

from base64 import b64encode
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tsd.auth.accounts import Account, write_lines
from tsd.auth.credentials import hash_password, hash_token, new_token
from tsd.auth.roles import Role
from tsd.server.telnet import MAX_LOGIN_ATTEMPTS

pytestmark = pytest.mark.slow

PUT = b"put a.b 1500000000 1 host=a\n"
JSON = b'{"metric":"a.b","timestamp":1500000000,"value":1,"tags":{"host":"a"}}'


class Accounts:
    """An accounts file with the tokens by name."""

    def __init__(self, folder: Path, **roles: Role) -> None:
        self.path = folder / "accounts"
        self.tokens = {name: new_token() for name in roles}
        self.lines = {name: str(Account(name, role, hash_token(self.tokens[name]))) for name, role in roles.items()}
        self.write()

    def write(self) -> None:
        write_lines(self.path, self.lines.values())

    @property
    def access(self) -> dict[str, str]:
        return {"tsd.core.authentication.enable": "true", "tsd.auth.file": str(self.path)}

    def bearer(self, name: str) -> str:
        return f"Authorization: Bearer {self.tokens[name]}"


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path, agent=Role.WRITE, grafana=Role.READ, root=Role.READ | Role.WRITE | Role.ADMIN)


async def replies_to(daemon: Running, lines: bytes) -> bytes:
    """Return all replies to lines up to the end of the connection."""
    async with daemon.client() as client:
        await client.send(lines)
        return await client.read_to_end()


async def test_telnet_auth_command_as_in_opentsdb(tmp_path: Path, accounts: Accounts) -> None:
    async with running(tmp_path / "state", access=accounts.access) as daemon:
        token = accounts.tokens["agent"].encode()
        replies = await replies_to(
            daemon, b"version\n" + PUT + b"auth " + token + b"\r\n" + PUT + b"auth x\nsync\nexit\n"
        )
        assert replies == (b"AUTH_FAIL\r\nAUTH_FAIL\r\nAUTH_SUCCESS\r\nunknown command: auth.  Try `help'.\nsynced 1\n")
        replies = await replies_to(daemon, b"auth basic agent " + token + b"\nhelp\nexit\n")
        assert replies == b"AUTH_SUCCESS\r\navailable commands: version exit help put rollup histogram \n"


@pytest.mark.difference(
    "telnet-login-attempts",
    topic="security",
    theirs="Telnet login attempts are not limited",
    ours="Each failure is answered later than the one before, and the connection ends after five",
)
async def test_telnet_closed_after_failed_logins(tmp_path: Path, accounts: Accounts) -> None:
    async with running(tmp_path / "state", access=accounts.access) as daemon:
        assert await replies_to(daemon, PUT * 1000) == b"AUTH_FAIL\r\n" * MAX_LOGIN_ATTEMPTS
        assert await replies_to(daemon, b"x" * 100_000) == b""
        assert "accounts" in [name for name, _ in daemon.daemon.reloads]  # of SIGHUP
        assert daemon.daemon.ingest.ledger.received == 0


async def test_missing_role_refused_with_opentsdb_message(tmp_path: Path, accounts: Accounts) -> None:
    async with running(tmp_path / "state", access=accounts.access) as daemon:
        log_in = b"auth " + accounts.tokens["grafana"].encode() + b"\n"
        replies = await replies_to(
            daemon, log_in + PUT * 2 + b"rollup 1h-sum a 1 1 a=b\nsync\ndropcaches\nversion\nexit\n"
        )
        refused = [line for line in replies.split(b"\n") if b"Unauthorized" in line]
        assert refused == [
            b"put: illegal argument: Unauthorized command: put",
            b"put: illegal argument: Unauthorized command: put",
            b"rollup: illegal argument: Unauthorized command: rollup",
            b"sync: illegal argument: Unauthorized command: sync",
            b"dropcaches: illegal argument: Unauthorized command: dropcaches",
        ]
        replies = await replies_to(daemon, b"auth " + accounts.tokens["agent"].encode() + b"\nstats\nexit\n")
        assert replies.endswith(b"stats: illegal argument: Unauthorized command: stats\n")
        assert daemon.daemon.ingest.ledger.received == 0


@pytest.mark.parametrize("protocol", ["telnet", "http"])
@pytest.mark.parametrize(("anonymous", "account"), [("", None), ("read", None), ("", "grafana")])
async def test_senders_of_points_without_the_role_are_logged(
    tmp_path: Path, accounts: Accounts, anonymous: str, account: str | None, protocol: str
) -> None:
    """Agents that use telnet do not read replies: only the log can say why their points are missing."""
    access = {**accounts.access, "tsd.access.anonymous": anonymous}
    with capture_logs() as logs:
        async with running(tmp_path / "state", access=access) as daemon:
            assert (await http_request(daemon, "/api/dropcaches")).status == 401
            assert "client.unauthorized" not in [entry["event"] for entry in logs]  # a browser asks for a login then
            if protocol == "telnet":
                log_in = b"" if account is None else b"auth " + accounts.tokens[account].encode() + b"\n"
                await replies_to(daemon, log_in + PUT * 4 + b"exit\n")
            else:
                await http_post(daemon, "/api/put", JSON, *(() if account is None else (accounts.bearer(account),)))
            counts = daemon.daemon.access.authenticator.statistics()
    events = [entry for entry in logs if entry["event"] == "client.unauthorized"]
    assert [(entry["address"], entry["protocol"], entry["account"]) for entry in events] == [
        ("127.0.0.1", protocol, account)
    ]
    assert (counts.unauthorized if account is None else counts.forbidden)[protocol] > 0
    assert daemon.daemon.ingest.ledger.received == 0


@pytest.mark.parametrize("anonymous", ["", "write"])
async def test_commands_that_only_read_are_counted_and_not_logged(
    tmp_path: Path, accounts: Accounts, anonymous: str
) -> None:
    """Health checks send them, and no points are missing then."""
    access = {**accounts.access, "tsd.access.anonymous": anonymous}
    with capture_logs() as logs:
        async with running(tmp_path / "state", access=access) as daemon:
            await replies_to(daemon, b"version\nstats\n\nhelp\n" + b"exit\n" * MAX_LOGIN_ATTEMPTS)
            assert daemon.daemon.access.authenticator.statistics().unauthorized["telnet"] > 0
    assert "client.unauthorized" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize("line", [b"putm a 1 1 a=b", b"rollup 1h-sum a 1 1 a=b", b"put"])
async def test_writes_before_a_login_are_logged_in_every_form(tmp_path: Path, accounts: Accounts, line: bytes) -> None:
    with capture_logs() as logs:
        async with running(tmp_path / "state", access=accounts.access) as daemon:
            await replies_to(daemon, b"version\n" + (line + b"\n") * MAX_LOGIN_ATTEMPTS)
    assert "client.unauthorized" in [entry["event"] for entry in logs]


async def test_anonymous_client_with_role_can_log_in(tmp_path: Path, accounts: Accounts) -> None:
    access = {**accounts.access, "tsd.access.anonymous": "read"}
    async with running(tmp_path / "state", access=access) as daemon:
        token = accounts.tokens["agent"].encode()
        replies = await replies_to(
            daemon, PUT + b"auth nonsense\nauth " + token + b"\n" + PUT + b"sync\nauth x\nexit\n"
        )
        assert replies == (
            b"put: illegal argument: Unauthenticated command: put\nAUTH_FAIL\r\nAUTH_SUCCESS\r\nsynced 1\n"
            b"unknown command: auth.  Try `help'.\n"
        )


@pytest.mark.difference(
    "revoked-accounts",
    topic="security",
    theirs="A telnet login holds for the lifetime of the connection",
    ours="The connection of an account that was revoked or has expired is closed",
)
async def test_revoked_token_closes_its_connections(tmp_path: Path, accounts: Accounts) -> None:
    async with running(tmp_path / "state", access=accounts.access) as daemon, daemon.client() as client:
        await client.send(b"auth " + accounts.tokens["agent"].encode() + b"\n" + PUT + b"sync\n")
        await client.read_until(b"synced 1\n")
        del accounts.lines["agent"]
        accounts.write()
        await daemon.daemon.access.authenticator.reload()
        await client.send(PUT + b"sync\n")
        assert await client.read_to_end() == b"AUTH_FAIL\r\n"
        assert daemon.daemon.ingest.ledger.received == 1


@pytest.mark.difference(
    "authentication-errors",
    topic="security",
    theirs="A refusal by the plugin is an answer without any header, or 400 for puts",
    ours="It is 401 with `WWW-Authenticate`, or 403, in the usual form",
)
async def test_http_requires_and_accepts_credentials(tmp_path: Path, accounts: Accounts) -> None:
    accounts.lines["alice"] = str(Account("alice", Role.READ, hash_password("correct horse: battery")))
    accounts.write()
    async with running(tmp_path / "state", access=accounts.access) as daemon:
        replies = await http_request(daemon, "/api/suggest?type=metrics")
        assert replies.status == 401
        assert replies.headers["www-authenticate"].startswith("B")
        assert replies.json["error"]["message"] == "Unauthorized"
        token = accounts.tokens["grafana"]
        basic = [b64encode(text.encode()).decode() for text in (f"grafana:{token}", "alice:correct horse: battery")]
        for header in (accounts.bearer("grafana"), *(f"Authorization: Basic {one}" for one in basic)):
            assert (await http_request(daemon, "/api/suggest?type=metrics", header)).status == 200
            assert (await http_post(daemon, "/api/put", JSON, header)).status == 403
        assert (await http_post(daemon, "/api/put", JSON, accounts.bearer("agent"))).status == 204
        assert (await http_request(daemon, "/api/suggest?type=metrics", accounts.bearer("agent"))).status == 403
        assert (await http_request(daemon, "/q?start=1h-ago&m=sum:a&ascii")).status == 401
        assert (await http_request(daemon, "/api/suggest?type=metrics", "Authorization: Bearer nonsense")).status == 401


@pytest.mark.difference(
    "authentication",
    topic="security",
    theirs=(
        "A plugin authenticates the first request of a connection only: later requests of other clients through a "
        "proxy are not checked"
    ),
    ours="A file has the accounts (`tsd token`), and each request is authenticated",
)
async def test_each_request_is_authenticated(tmp_path: Path, accounts: Accounts) -> None:
    """OpenTSDB authenticates the first request only, so later requests through a proxy pass unchecked."""
    async with running(tmp_path / "state", access=accounts.access) as daemon, daemon.client() as client:
        request = "GET /api/suggest?type=metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
        for header, status in ((accounts.bearer("grafana") + "\r\n", b"200"), ("", b"401")):
            await client.send(request.format(header).encode() * 2)
            for _ in range(2):
                assert (await client.read_until(b"\r\n")).split()[1] == status
                length = 0
                while (line := await client.read_until(b"\r\n")) != b"\r\n":
                    name, _, value = line.partition(b": ")
                    length = int(value) if name == b"Content-Length" else length
                await client.read_bytes(length)


async def test_large_unauthenticated_body_is_not_read(tmp_path: Path, accounts: Accounts) -> None:
    async with running(tmp_path / "state", access=accounts.access) as daemon, daemon.client() as client:
        await client.send(b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n[")
        assert (await client.read_until(b"\r\n")).split()[1] == b"401"


async def test_only_allowed_networks_connect(tmp_path: Path) -> None:
    async with running(tmp_path / "a", access={"tsd.network.allow": "10.0.0.0/8"}) as daemon:
        async with daemon.client() as client:
            with pytest.raises((AssertionError, trio.BrokenResourceError)):
                await client.send_lines(PUT)
        assert daemon.daemon.access.authenticator.statistics().outside == 1
    async with running(tmp_path / "b", access={"tsd.network.allow": "10.0.0.0/8,127.0.0.0/8"}) as daemon:
        assert await daemon.send_lines(PUT) == b"synced 1\n"


@pytest.mark.difference("administration")
async def test_administration_is_off_without_authentication(tmp_path: Path) -> None:
    async with running(tmp_path / "a", access={}) as daemon:
        replies = await replies_to(daemon, PUT + b"dropcaches\nhelp\nsync\nexit\n")
        assert replies == (
            b"dropcaches: illegal argument: Unauthorized command: dropcaches\n"
            b"available commands: stats version exit help put rollup histogram \nsynced 1\n"
        )
        http_response = await http_request(daemon, "/api/dropcaches")
        assert http_response.status == 403
        assert "tsd.access.anonymous" in http_response.json["error"]["details"]
    async with running(tmp_path / "b", access={"tsd.access.anonymous": "read,write,admin"}) as daemon:
        assert (await http_request(daemon, "/api/dropcaches")).status == 200
