"""Heroic's table of points, with an index of series."""
