"""Endpoints of the HTTP API: each turns a Request into a Response, without access to sockets."""
