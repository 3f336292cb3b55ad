"""The self-test of a sandbox: attacks from inside, and what they say about each control."""

from operator_core.sandbox.selftest.attack import examine

__all__ = ["examine"]
