"""Blocks: the cells of many series of one metric and hour in one value. FORMATS.md in this folder has the bytes."""
