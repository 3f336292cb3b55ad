"""Talking with people through the table of conversations: the personal and the global manager."""
