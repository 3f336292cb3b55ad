"""The HTTP API and the console: one server process for people and programs."""
