"""Where the newest looks at each thing under watch begin, found without reading the others."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CTE, BindParameter, Integer, bindparam, func, select

from operator_core.db.schema import monitor_samples, monitor_states

__all__ = ["look_bounds"]


def look_bounds(*, until: BindParameter[Any] | None = None, keys: BindParameter[Any] | None = None) -> CTE:
    """For each violation key the moment (``before``) behind which its newest looks lie; how many, says ``most``.

    It is found from the end of the primary key, once for each key: however many looks there are, only the wanted ones
    are read. Materialized, so that no planner finds it anew for each look.

    Args:
        until: Looks after that moment do not count; None: all do.
        keys: Only these; None: everything under watch.
    """
    older = monitor_samples.alias("older")
    begin = select(older.c.at).where(older.c.violation_key == monitor_states.c.violation_key)
    if until is not None:
        begin = begin.where(older.c.at <= until)
    begin = begin.order_by(older.c.at.desc()).offset(bindparam("most", type_=Integer)).limit(1)
    before = func.coalesce(begin.correlate(monitor_states).scalar_subquery(), -(2**62)).label("before")
    bounds = select(monitor_states.c.violation_key, before)
    if keys is not None:
        bounds = bounds.where(monitor_states.c.violation_key.in_(keys))
    return bounds.cte("bounds").prefix_with("MATERIALIZED")
