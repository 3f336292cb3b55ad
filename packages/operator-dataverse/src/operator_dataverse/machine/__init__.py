"""The dev box: what must be installed and signed in on it, the window for signing in, and the worker's service."""
