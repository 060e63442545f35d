"""Settings: their names, types and defaults, the file loader, the state directory and the log setup."""
