"""Requests to /api/put, one after the other over one connection: each when the one before was answered."""

import http.client
from collections.abc import Callable, Sequence

NO_CONTENT = 204


def posting(requests: Sequence[bytes], port: int) -> Callable[[], str]:
    """Connect, and what then delivers the bodies. An answer that is not 204 fails."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()

    def deliver() -> str:
        for body in requests:
            connection.request("POST", "/api/put", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == NO_CONTENT, response.read()
            response.read()
        connection.close()
        return ""

    return deliver
