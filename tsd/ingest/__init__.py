"""Ingest: blocks of put lines → a journal and the open window → windows of cells in the store."""
