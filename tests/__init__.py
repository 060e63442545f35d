"""What the daemon promises, checked: see the folders."""
