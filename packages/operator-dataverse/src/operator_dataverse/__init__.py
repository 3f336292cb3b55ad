"""Operator's work from Dataverse, Teams and OneDrive, and the dev boxes it is done on.

It uses what ``operator_core`` exports and plugs in by entry points: the section ``[dataverse]`` of ``operator.toml``
(``settings``) and the source of tickets (``source``).
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
