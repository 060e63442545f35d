"""From what somebody asks to the rows that answer it."""
