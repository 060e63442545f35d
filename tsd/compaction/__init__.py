"""Rows of hours that are over → one cell each: by the daemon at a measured pace, or in one pass of `tsd compact`."""
