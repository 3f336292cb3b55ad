"""A stand-in for Dataverse and its neighbours on this machine: servers that behave like them, for tests and trials.

It is driven by the same ``schemas/`` as the product and shares no code with its client, so that it can judge it.
"""

from operator_dataverse.double.faults import Fault, Faults
from operator_dataverse.double.history import Effect, History, Request
from operator_dataverse.double.server import Double, Rows, Served
from operator_dataverse.double.store import Account

__all__ = ["Account", "Double", "Effect", "Fault", "Faults", "History", "Request", "Rows", "Served"]
