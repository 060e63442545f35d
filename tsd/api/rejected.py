"""/api/stats/rejected: the refused lines in the log, grouped, as `tsd rejected --summary` counts them."""

from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path

import trio

from tsd.api.messages import answer, check_method
from tsd.ingest.rejected.files import RejectedFilter, groups, read_entries
from tsd.server.http.messages import Endpoint, Request, Response

MAX_GROUPS = 100


def routes(folder: Path, flush: Callable[[], Awaitable[None]]) -> dict[str, Endpoint]:
    """Return the endpoint. `folder` is the state folder; `flush` writes buffered records to the log."""

    async def rejected(request: Request) -> Response:
        check_method(request, "GET")
        await flush()
        return answer(await trio.to_thread.run_sync(_groups, folder))

    return {"api/stats/rejected": rejected}


def _groups(folder: Path) -> list[dict[str, object]]:
    """Return the largest groups of refused lines that were not accepted since."""
    wanted = RejectedFilter()
    entries = (entry for entry in read_entries(folder / "rejected", folder / "refused") if wanted.has(entry))
    return [group._asdict() for group in islice(groups(entries), MAX_GROUPS)]
