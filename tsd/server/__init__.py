"""The server: sockets, TLS, telnet, HTTP, clients and their limits. It knows no tables and no cells."""
