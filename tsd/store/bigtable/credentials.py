"""google-auth: the key of a service account, or application default credentials. Only this module imports it."""

from typing import Any

import google.auth
from google.auth import exceptions
from google.auth.transport.grpc import AuthMetadataPlugin
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from tsd.errors import StoreDown, StoreError

SCOPES = [
    "https://www.googleapis.com/auth/bigtable.data",
    "https://www.googleapis.com/auth/bigtable.admin.table",
]
account: Any = service_account.Credentials
metadata_plugin: Any = AuthMetadataPlugin


class Credentials:
    """Credentials with a token."""

    def __init__(self, credentials: Any, plugin: Any) -> None:
        """`plugin` adds the token to calls of grpcio."""
        self._credentials = credentials
        self.plugin = plugin

    def renew(self) -> None:
        """Get a new token with the next call."""
        self._credentials.token = None


def log_in(file: str) -> Credentials:
    """Return credentials, with a first token. `file` is the key of a service account, empty: the default ones. Raise
    StoreError if they do not work, StoreDown if the server of tokens does not answer."""
    named = f"credentials {file}" if file else "application default credentials"
    try:
        if file:
            credentials = account.from_service_account_file(file, scopes=SCOPES)
        else:
            credentials, _ = google.auth.default(scopes=SCOPES)
        request = Request()
        credentials.refresh(request)
    except exceptions.TransportError as exc:
        raise StoreDown(f"the {named} cannot be checked: {_server(exc)} does not answer") from None
    except exceptions.RefreshError as exc:
        raise StoreError(f"the {named} do not work: {_line(exc)}") from None
    except (exceptions.GoogleAuthError, OSError, ValueError) as exc:
        raise StoreError(f"the {named} cannot be used: {_line(exc)}") from None
    return Credentials(credentials, metadata_plugin(credentials, request))


def _server(error: exceptions.TransportError) -> str:
    """Return the URL that did not answer, as far as the library tells it."""
    cause = error.args[0] if error.args else None
    request = getattr(cause, "request", None)
    return str(request.url) if request is not None else f"the server of tokens ({_line(error)})"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
