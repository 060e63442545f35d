"""Send requests to /api/put over one connection, each after the previous answer."""

import http.client
from collections.abc import Callable, Sequence

NO_CONTENT = 204


def posting(requests: Sequence[bytes], port: int) -> Callable[[], str]:
    """Connect, and return a function that sends the bodies. Answers other than 204 fail."""
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
