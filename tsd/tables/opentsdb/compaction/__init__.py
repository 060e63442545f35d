"""Compacts the rows of past hours to one cell each: in the daemon, or in one pass of `tsd compact`."""
