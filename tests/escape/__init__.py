"""Attacks on a sandbox from inside of it, each with a witness outside; see ``docs/sandboxing.md``."""
