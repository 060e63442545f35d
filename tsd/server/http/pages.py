"""HTML pages: errors outside the API, and the reply to /diediedie."""

from html import escape

STYLE = "body{font-family:sans-serif;margin:2em}blockquote{border-left:3px solid #ccc;padding-left:1em}"


def page(title: str, heading: str, body: str) -> bytes:
    """Return a page. `title` and `heading` are text, `body` is HTML."""
    return (
        f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"</head>\n<body><h1>{escape(heading)}</h1>\n{body}\n</body></html>\n"
    ).encode()


def bad_request(reason: str) -> bytes:
    """Return the page of a client's error, in OpenTSDB's words."""
    quote = f"<blockquote>The reason provided was:<br>{_with_code(reason)}</blockquote>"
    return page("Bad Request", "Looks like it's your fault this time", quote)


def denied(message: str, details: str) -> bytes:
    """Return the page of a request that is not allowed."""
    return page(message, message, f"<blockquote>{escape(details)}</blockquote>")


def not_found() -> bytes:
    """Return the page of an unknown path."""
    return page(
        "Page Not Found", "Page Not Found", "<blockquote>The requested URL was not found on this server.</blockquote>"
    )


def server_error(reason: str, trace: str = "") -> bytes:
    """Return the page of an internal error or a store's error."""
    quote = f"<blockquote>The reason provided was:<br>{_with_code(reason)}</blockquote>"
    return page(
        "Internal Server Error", "Internal Server Error", quote + (f"<pre>{escape(trace)}</pre>" if trace else "")
    )


def moved(location: str) -> bytes:
    """Return a page that redirects browsers."""
    return (
        f'<!DOCTYPE html>\n<html><head><meta http-equiv="refresh" content="0; url={escape(location)}"></head>'
        "<body></body></html>\n"
    ).encode()


def exiting() -> bytes:
    """Return the reply to `/diediedie`."""
    return page("TSD Exiting", "Cleaning up and exiting now.", "")


def _with_code(text: str) -> str:
    """Escape text, but keep the `<code>` of OpenTSDB's messages."""
    return escape(text).replace("&lt;code&gt;", "<code>").replace("&lt;/code&gt;", "</code>")
