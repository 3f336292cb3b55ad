"""Benchmarks: each prints a table that a number in the documentation can be checked against."""
