"""/api/config: the settings in force, and which filters there are."""

from enum import Enum
from typing import Any, NamedTuple

from tsd.api.messages import answer, check_method
from tsd.config import Config, keys
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.query.filters import NOT_KEY

HIDDEN = "********"
SECRET = ("PASS", "SECRET", "TOKEN")  # in keys


class FilterHelp(NamedTuple):
    """What people are told of a filter."""

    examples: str
    description: str


FILTERS = {
    "iwildcard": FilterHelp(
        "host=iwildcard(web*), host=iwildcard(*mob.tsdb.net)",
        "Matches tag values with asterisks for any characters, whatever their case.",
    ),
    "wildcard": FilterHelp(
        "host=wildcard(web*), host=wildcard(web*mob.tsdb.net)",
        "Matches tag values with asterisks for any characters, in their case. A value of * alone matches all.",
    ),
    "not_literal_or": FilterHelp(
        "host=not_literal_or(web01), host=not_literal_or(web01|web02)",
        "Leaves out series with one of these tag values, with pipes between, in their case.",
    ),
    "not_iliteral_or": FilterHelp(
        "host=not_iliteral_or(web01), host=not_iliteral_or(web01|WEB02)",
        "Leaves out series with one of these tag values, with pipes between, whatever their case.",
    ),
    "literal_or": FilterHelp(
        "host=literal_or(web01), host=literal_or(web01|web02)",
        "Takes one or more tag values, with pipes between, in their case.",
    ),
    "iliteral_or": FilterHelp(
        "host=iliteral_or(web01), host=iliteral_or(web01|WEB02)",
        "Takes one or more tag values, with pipes between, whatever their case.",
    ),
    "regexp": FilterHelp(
        "host=regexp(web.*), host=regexp(web0[1-4])",
        "Matches tag values in which a regular expression finds something: ^ and $ tie it to their ends.",
    ),
}
NO_KEY = FilterHelp("host=not_key()", "Takes series without this tag name.")


def routes(config: Config) -> dict[str, Endpoint]:
    """Both answers are known at the start."""
    settings = answer(in_force(config))
    known = {**FILTERS, NOT_KEY: NO_KEY} if config.corrected else FILTERS
    filters = answer({name: help_._asdict() for name, help_ in known.items()})

    async def api(request: Request) -> Response:
        check_method(request, "GET", "POST")
        return filters if request.segments[1:2] == ("filters",) else settings

    return {"api/config": api}


def in_force(config: Config) -> dict[str, str]:
    """Every setting as a text, by its key in order; what a password might be is hidden."""
    values = {key: _text(getattr(config, field.name)) for key, field in keys().items()}
    values["tsd.core.auto_create_metrics"] = _text(config.creates_metrics)
    return {
        key: HIDDEN if any(word in key.upper() for word in SECRET) else value for key, value in sorted(values.items())
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)
