"""Sockets: who is connected, which protocol they speak, and what they are answered. No row key, no cell."""
