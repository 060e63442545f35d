"""What Bigtable's service does and its emulator does not: errors of each kind, rows in parts, verdicts that lack."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.unit.store.bigtable_server import Answer, Failing, ScriptedServer, cell_chunk, scripted, verdict
from tsd.daemon.settings import now_ms
from tsd.errors import NoTable, StoreBusy, StoreDown, StoreError
from tsd.store import Cell, Family, Page, Put, Row, Table
from tsd.store.bigtable.engine import BigtableStore
from tsd.store.bigtable.session import (
    ABORTED,
    CANCELLED,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    Contact,
)
from tsd.store.bigtable.wire import chunk, fields, number

PUTS = [Put(row, b"t:q", b"v") for row in (b"a", b"b", b"c")]
ALL_DONE: Answer = [verdict(0) + verdict(1) + verdict(2)]


@asynccontextmanager
async def on(*answers: Answer, timeout_s: float = 20.0) -> AsyncIterator[tuple[BigtableStore, ScriptedServer]]:
    """A store on a server with these answers."""
    with scripted(*answers) as server:
        contact = Contact("p", "i", "profile", emulator=f"127.0.0.1:{server.port}", timeout_s=timeout_s)
        store = BigtableStore(contact, now_ms)
        try:
            yield store, server
        finally:
            await store.aclose()


def rows_of(request: bytes) -> list[bytes]:
    """The rows of a MutateRowsRequest."""
    return [next(data for of, _, data in fields(entry) if of == 1) for field, _, entry in fields(request) if field == 2]


@pytest.mark.parametrize(
    "failing",
    [
        Failing(UNAVAILABLE), Failing(DEADLINE_EXCEEDED), Failing(ABORTED), Failing(CANCELLED),
        Failing(RESOURCE_EXHAUSTED, retry_after_ms=20), Failing(INTERNAL, "Received RST_STREAM with code 2"),
        Failing(UNAUTHENTICATED),
    ],
    ids=lambda failing: str(failing.code),
)  # fmt: skip
async def test_put_is_repeated_after_errors_that_pass(failing: Failing) -> None:
    async with on([failing], ALL_DONE) as (store, server):
        await store.put("x", PUTS)
        assert [rows_of(request) for request in server.requests] == [[b"a", b"b", b"c"]] * 2
        assert server.requests[0] == server.requests[1]  # with the same timestamps


async def test_only_rows_that_failed_are_put_again() -> None:
    partly: Answer = [verdict(2), verdict(0, UNAVAILABLE) + verdict(1)]
    async with on(partly, [verdict(0)]) as (store, server):
        await store.put("x", PUTS)
        assert rows_of(server.requests[1]) == [b"a"]


async def test_rows_without_a_verdict_are_put_again() -> None:
    async with on([verdict(1)], [verdict(0)], [verdict(0)]) as (store, server):
        await store.put("x", PUTS)
        assert [rows_of(request) for request in server.requests] == [[b"a", b"b", b"c"], [b"a", b"c"], [b"c"]]


async def test_verdicts_before_a_broken_stream_count() -> None:
    async with on([verdict(0) + verdict(1), Failing(UNAVAILABLE)], [verdict(0)]) as (store, server):
        await store.put("x", PUTS)
        assert rows_of(server.requests[1]) == [b"c"]


async def test_refused_row_is_an_error_and_is_not_repeated() -> None:
    async with on([verdict(0) + verdict(1, INVALID_ARGUMENT, "too long") + verdict(2)]) as (store, server):
        with pytest.raises(StoreError, match="too long"):
            await store.put("x", PUTS)
        assert len(server.requests) == 1


@pytest.mark.slow
async def test_long_overload_is_store_busy() -> None:
    async with on([Failing(RESOURCE_EXHAUSTED, "quota")], timeout_s=1.0) as (store, _):
        for call in (store.put("x", PUTS), store.get("x", [b"a"]), store.increment("x", b"a", b"t:q", 1)):
            with pytest.raises(StoreBusy, match="quota"):
                await call


async def test_refused_call_is_store_busy_after_attempts_without_answer() -> None:
    async with on([Failing(RESOURCE_EXHAUSTED, "quota")], [Failing(DEADLINE_EXCEEDED)], timeout_s=1.0) as (store, _):
        with pytest.raises(StoreBusy, match="quota"):
            await store.put("x", PUTS)


async def test_pause_that_the_server_asks_for_is_kept() -> None:
    async with on([Failing(RESOURCE_EXHAUSTED, retry_after_ms=60_000)]) as (store, server):
        with pytest.raises(StoreBusy):
            await store.put("x", PUTS)
        assert len(server.requests) == 1


@pytest.mark.parametrize("code", [UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED, RESOURCE_EXHAUSTED])
async def test_conditional_writes_and_increments_are_sent_once(code: int) -> None:
    async with on([Failing(code)]) as (store, server):
        for call in (
            store.check_and_put("x", b"a", b"t:q", b"v", expected=None),
            store.create("x", PUTS[:1]),
            store.increment("x", b"a", b"t:q", 1),
        ):
            with pytest.raises((StoreDown, StoreBusy)):
                await call
        assert server.methods == ["CheckAndMutateRow", "CheckAndMutateRow", "ReadModifyWriteRow"]


async def test_value_that_is_cut_is_joined() -> None:
    parts: Answer = [
        cell_chunk(b"a", b"u:z", b"12", size=6) + cell_chunk(value=b"34", size=6),
        cell_chunk(value=b"56"),
        cell_chunk(column=b"t:q", value=b"v", commit=True),
    ]
    async with on(parts) as (store, _):
        assert await store.get("x", [b"a"]) == {b"a": [Cell(b"t:q", b"v", 1), Cell(b"u:z", b"123456", 1)]}


async def test_row_that_is_reset_starts_again() -> None:
    parts: Answer = [
        cell_chunk(b"a", b"t:q", b"old") + cell_chunk(reset=True),
        cell_chunk(b"a", b"t:r", b"new", commit=True),
    ]
    async with on(parts) as (store, _):
        assert await store.get("x", [b"a"]) == {b"a": [Cell(b"t:r", b"new", 1)]}


async def test_scan_goes_on_after_its_last_whole_row() -> None:
    first: Answer = [
        cell_chunk(b"a", b"t:q", b"1", commit=True) + cell_chunk(b"b", b"t:q", b"part"), Failing(UNAVAILABLE),
    ]  # fmt: skip
    second: Answer = [cell_chunk(b"b", b"t:q", b"2", commit=True)]
    async with on(first, second) as (store, server):
        page = await store.page("x", b"", b"c", limit=5)
        assert page.rows == [Row(b"a", [Cell(b"t:q", b"1", 1)]), Row(b"b", [Cell(b"t:q", b"2", 1)])]
        assert page.next_start is None
        asked = {of: data or value for of, value, data in fields(server.requests[1])}
        assert asked[2] == chunk(2, chunk(1, b"a\0") + chunk(3, b"c"))
        assert asked[4] == 4


async def test_scan_goes_on_after_rows_without_an_answer() -> None:
    async with on([chunk(2, b"m"), Failing(UNAVAILABLE)], []) as (store, server):
        assert (await store.page("x", b"a", b"z", limit=5)).rows == []
        asked = {of: data for of, _, data in fields(server.requests[1])}
        assert asked[2] == chunk(2, chunk(1, b"m\0") + chunk(3, b"z"))


async def test_page_of_a_slow_server_ends_with_what_came_in_time() -> None:
    slow: Answer = [cell_chunk(b"a", b"t:q", b"1", commit=True), Failing(RESOURCE_EXHAUSTED, retry_after_ms=60_000)]
    async with on(slow, [Failing(RESOURCE_EXHAUSTED, retry_after_ms=60_000)]) as (store, _):
        page = await store.page("x", b"", b"c", limit=5)
        assert page == Page([Row(b"a", [Cell(b"t:q", b"1", 1)])], b"a\0")
        with pytest.raises(StoreBusy):
            await store.page("x", b"a\0", b"c", limit=5)


async def test_get_goes_on_with_the_rows_that_lack() -> None:
    first: Answer = [cell_chunk(b"b", b"t:q", b"1", commit=True), Failing(ABORTED)]
    async with on(first, []) as (store, server):
        assert list(await store.get("x", [b"a", b"b", b"c"])) == [b"b"]
        asked = {of: data for of, _, data in fields(server.requests[1])}
        assert asked[2] == chunk(1, b"c")


@pytest.mark.parametrize(
    ("failing", "named", "kind"),
    [
        (
            Failing(PERMISSION_DENIED, "Access denied"),
            r"permission.*projects/p/instances/i\b.*Access denied",
            StoreError,
        ),
        (Failing(NOT_FOUND, "Instance projects/p/instances/i not found"), r"no project, instance", StoreError),
        (Failing(NOT_FOUND, "Table not found: projects/p/instances/i/tables/x"), r"no table x\b", NoTable),
        (Failing(NOT_FOUND, "Requested column family not found: q"), r"table x .*family.*\bq\b", StoreError),
        (Failing(UNAUTHENTICATED, "Token expired"), r"credentials.*Token expired", StoreError),
        (Failing(FAILED_PRECONDITION, "Multi-cluster routing"), r"app profile profile\b.*one cluster", StoreError),
    ],
    ids=["permission", "instance", "table", "family", "credentials", "profile"],
)
async def test_error_is_one_clear_line(failing: Failing, named: str, kind: type[StoreError]) -> None:
    async with on([failing]) as (store, _):
        with pytest.raises(kind, match=named) as caught:
            await store.increment("x", b"a", b"t:q", 1)
        assert "\n" not in str(caught.value)


async def test_profile_without_transactions_is_told_with_the_tables() -> None:
    table = chunk(3, chunk(1, b"t") + chunk(2, chunk(1, number(1, 1))))
    async with on([b""], [table], [Failing(FAILED_PRECONDITION, "multi")]) as (store, server):
        with pytest.raises(StoreError, match="one cluster"):
            await store.create_tables([Table("x", (Family(b"t"),))])
        assert server.methods[-1] == "CheckAndMutateRow"


# ---- Credentials


@contextmanager
def token_server(status: int, body: bytes) -> Iterator[str]:
    """A server of tokens that gives one answer. Yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def key_file(folder: Path, token_uri: str) -> str:
    """The file of a service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "account.json"
    account = {
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": pem.decode(),
        "client_email": "tsd@p.iam.gserviceaccount.com", "token_uri": token_uri,
    }  # fmt: skip
    file.write_text(json.dumps(account))
    return str(file)


async def test_revoked_key_of_a_service_account_is_named(tmp_path: Path) -> None:
    with token_server(400, b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}') as address:
        file = key_file(tmp_path, address)
        store = BigtableStore(Contact("p", "i", credentials=file), now_ms)
        with pytest.raises(StoreError, match=r"account\.json.*Invalid JWT Signature") as caught:
            await store.tables()
        await store.aclose()
    assert not isinstance(caught.value, StoreDown)
    assert "\n" not in str(caught.value)


async def test_server_of_tokens_without_an_answer_is_named(tmp_path: Path) -> None:
    file = key_file(tmp_path, "http://127.0.0.1:1/token")
    store = BigtableStore(Contact("p", "i", credentials=file), now_ms)
    with pytest.raises(StoreDown, match=r"account\.json.*: http://127\.0\.0\.1:1/token does not answer$"):
        await store.tables()
    await store.aclose()


async def test_missing_key_file_is_named(tmp_path: Path) -> None:
    store = BigtableStore(Contact("p", "i", credentials=str(tmp_path / "gone.json")), now_ms)
    with pytest.raises(StoreError, match=r"gone\.json"):
        await store.tables()
    await store.aclose()
