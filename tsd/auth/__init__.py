"""Authentication and authorization: accounts, credentials, networks and roles. No sockets and no requests."""
