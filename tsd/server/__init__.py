"""The server: sockets, TLS, telnet, HTTP, clients and their limits. It imports no table layout."""
