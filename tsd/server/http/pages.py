"""The few HTML pages: errors outside the API, the home page, and the farewell."""

from html import escape

STYLE = "body{font-family:sans-serif;margin:2em}blockquote{border-left:3px solid #ccc;padding-left:1em}"


def page(title: str, heading: str, body: str) -> bytes:
    """A page. `title` and `heading` are text, `body` is HTML."""
    return (
        f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"</head>\n<body><h1>{escape(heading)}</h1>\n{body}\n</body></html>\n"
    ).encode()


def bad_request(reason: str) -> bytes:
    """The page of an error that the client made."""
    told = f"<blockquote>The reason provided was:<br>{_with_code(reason)}</blockquote>"
    return page("Bad Request", "Looks like it's your fault this time", told)


def denied(message: str, details: str) -> bytes:
    """The page of what somebody may not see."""
    return page(message, message, f"<blockquote>{escape(details)}</blockquote>")


def not_found() -> bytes:
    """The page of a path that leads nowhere."""
    return page(
        "Page Not Found", "Page Not Found", "<blockquote>The requested URL was not found on this server.</blockquote>"
    )


def server_error(reason: str, trace: str = "") -> bytes:
    """The page of an error of ours, or of the store's."""
    told = f"<blockquote>The reason provided was:<br>{_with_code(reason)}</blockquote>"
    return page(
        "Internal Server Error", "Internal Server Error", told + (f"<pre>{escape(trace)}</pre>" if trace else "")
    )


def moved(location: str) -> bytes:
    """A page that sends browsers elsewhere."""
    return (
        f'<!DOCTYPE html>\n<html><head><meta http-equiv="refresh" content="0; url={escape(location)}"></head>'
        "<body></body></html>\n"
    ).encode()


def home(version: str) -> bytes:
    """What a browser finds at `/`. The title and the name of its part are those that health checks look for."""
    links = "".join(
        f'<li><a href="{path}">{path}</a>: {what}</li>\n'
        for path, what in (
            ("/api/version", "what runs here"),
            (
                "/api/stats",
                "its numbers",
            ),
            ("/metrics", "the same, for Prometheus"),
            ("/api/config", "its settings"),
            ("/api/aggregators", "how points can be aggregated"),
            ("/health/ready", "whether it can write and read"),
            ("/logs", "what it logged last"),
        )
    )
    return page("OpenTSDB", f"tsd {version}", f'<div id="queryuimain"><ul>\n{links}</ul></div>')


def exiting() -> bytes:
    """The answer to `/diediedie`."""
    return page("TSD Exiting", "Cleaning up and exiting now.", "")


def _with_code(text: str) -> str:
    """Text as HTML, but for the `<code>` that OpenTSDB's messages carry."""
    return escape(text).replace("&lt;code&gt;", "<code>").replace("&lt;/code&gt;", "</code>")
