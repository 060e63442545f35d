"""Blocks: the points of many series of one metric and hour, by column. FORMATS.md in this folder has the bytes."""
