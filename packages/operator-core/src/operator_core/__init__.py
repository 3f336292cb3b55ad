"""Operator: an autonomous operations agent whose work counts only when it is proved.

Nothing heavy is imported here; import what you need from the sub-packages:
``agent_lab`` (the loop and its tool), ``db`` (store), ``sandbox``, ``monitor``, ``verify``, ``work``.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
