"""Queries over HTTP, for any daemon with OpenTSDB's API: `tsd query --url`."""

import json
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

import click

from tsd.config.certificate_files import client_context
from tsd.errors import TsdError

TOKEN = "TSD_TOKEN"  # noqa: S105 - the variable's name


def ask(url: str, params: Sequence[tuple[str, str]], timeout_s: float) -> bytes:
    """Return the body of the answer of /api/query below `url`. Raise TsdError, and UsageError for a malformed URL."""
    parts = split_url(url)
    headers = _credentials(parts)
    path = f"{parts.path.rstrip('/')}/api/query?{urlencode(params)}"
    try:
        connection = _connection(parts, timeout_s)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
    except SSLCertVerificationError as exc:
        raise TsdError(
            f"the certificate of {shown(parts)} is refused: {exc.verify_message}. If an authority of your own signed "
            "it, name the authority's file in the variable SSL_CERT_FILE"
        ) from exc
    except (OSError, HTTPException, UnicodeError) as exc:  # UnicodeError: for a name with two dots in a row
        reason = (exc.strerror if isinstance(exc, OSError) else "") or str(exc) or type(exc).__name__
        raise TsdError(f"no daemon answers at {shown(parts)}: {reason}") from exc
    if response.status != 200:
        raise TsdError(f"{shown(parts)}: {response.status}: {_message(body) or response.reason}")
    return body


def _connection(parts: SplitResult, timeout_s: float) -> HTTPConnection:
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=client_context())


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise UsageError."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise click.UsageError(f"--url {url}: wanted http://HOST:PORT or https://HOST:PORT")
    return parts


def shown(parts: SplitResult) -> str:
    """Return the URL without its password."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _credentials(parts: SplitResult) -> Mapping[str, str]:
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    token = os.environ.get(TOKEN, "").strip()  # a file of Windows ends with CR and LF
    if token and not (token.isascii() and token.isprintable()):
        raise TsdError(f"{TOKEN}: got characters that no token has, wanted what tsd token add printed")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _message(body: bytes) -> str:
    """Return message and details of OpenTSDB's error object, empty for another body."""
    try:
        found: Any = json.loads(body)["error"]
        return ": ".join(dict.fromkeys(str(found[name]) for name in ("message", "details") if found.get(name)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
