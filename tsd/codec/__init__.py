"""Every byte of OpenTSDB's formats, and nothing else: no clock, no store, no task (see FORMATS.md)."""
