"""The flows of Power Automate: kept here, checked here, deployed from here."""

from __future__ import annotations

from operator_dataverse.flows.flow import NAMES, Flow, flow_named, load_flows
from operator_dataverse.flows.validate import flow_problems

__all__ = ["NAMES", "Flow", "flow_named", "flow_problems", "load_flows"]
