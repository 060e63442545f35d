"""The packed cell: whole columns of times and values in one compressed cell of the embedded store."""
