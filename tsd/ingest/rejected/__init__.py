"""Refused lines, kept so that they can be looked at, and sent again once the cause is mended."""
