"""Expressions over several metrics: `/api/query/exp` of OpenTSDB (docs/compat/query.md §20)."""
