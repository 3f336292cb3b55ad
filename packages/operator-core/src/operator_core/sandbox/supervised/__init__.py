"""Backends whose commands are started and ended by a supervisor of ours; and landlock, which is nothing but that."""
