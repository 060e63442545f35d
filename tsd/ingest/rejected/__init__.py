"""The log of refused lines, which `tsd rejected` lists, and sends again once the cause is repaired."""
