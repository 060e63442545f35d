"""Tables of the schema guide: rows of events or of days, with an index of series."""
