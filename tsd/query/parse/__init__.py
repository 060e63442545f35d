"""Parses requests: URI and JSON forms, times, validation."""
