"""Expressions over several metrics: `/api/query/exp` of OpenTSDB (query.md §20)."""
