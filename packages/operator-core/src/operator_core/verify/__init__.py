"""Verification: what was claimed is looked at by the platform, clause by clause, and reported with its evidence."""
