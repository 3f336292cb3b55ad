"""The tests of everything in packages/."""
