"""Queries: from a request to the series that answer it."""
