"""Endpoints of the HTTP API: each turns a Request into a Response, and knows no sockets."""
