"""/logs: what the daemon logged last."""

from tsd.api.messages import answer
from tsd.doors.exchange import TEXT, Endpoint, Request, Response
from tsd.errors import Refused
from tsd.log import LEVELS, recent_lines, set_level


def routes() -> dict[str, Endpoint]:
    """The log is the process's own: there is nothing to be given."""
    return {"logs": _logs}


async def _logs(request: Request) -> Response:
    """The newest lines first, or another level from now on: there is one logger, whatever `logger` says."""
    level = request.param("level")
    if level is not None:
        if level.lower() not in LEVELS:
            raise Refused(400, f"Invalid level: {level}")
        set_level(level)
        return Response(200, f"Set the log level to {level.upper()} on 1 logger.\n".encode(), TEXT)
    lines = recent_lines()
    if request.has("json"):
        return answer(lines)
    return Response(200, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"), TEXT)
