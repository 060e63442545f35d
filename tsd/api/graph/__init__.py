"""Graphs of queries: described by a request's parameters, drawn by matplotlib in a separate process."""
