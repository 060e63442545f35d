"""Functions over queries, in Graphite's manner: `/api/query/gexp` of OpenTSDB (query.md §19)."""
