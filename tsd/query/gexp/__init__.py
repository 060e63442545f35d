"""Functions over queries, like Graphite's: `/api/query/gexp` of OpenTSDB (docs/compat/query.md §19)."""
