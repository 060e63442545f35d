"""Ingest: blocks of put lines → a journal and open rows → windows of cells in the store."""
