"""The fixture ``double``: a Dataverse organisation on the loopback interface, with its rows and its history at hand.

A test module gets it by ``from tests.support.dataverse import double`` (a fixture is found by its name there)::

    async def test_claim(double: Double) -> None:
        row_id = double.seed("cr_shraga_tasks", cr_name="Try", cr_status=1)      # past HTTP
        async with Dataverse(double.url, StaticToken(double.token)) as client:   # over HTTP
            ...
        assert double.tables["cr_shraga_tasks"][row_id]["cr_status"] == 5
        assert double.history.values("cr_shraga_tasks", row_id, "cr_status") == [5]
        double.faults.storm(0.3)

The history is printed when the test fails. A write of the product that names no version (PATCH without If-Match and
If-None-Match) fails the test, see ``double.history.unconditional()``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from operator_dataverse.double import Double

__all__ = ["double", "plain_double"]


@pytest.fixture
def double() -> Iterator[Double]:
    """An organisation with all columns of the schemas."""
    yield from _judged(Double())


@pytest.fixture
def plain_double() -> Iterator[Double]:
    """An organisation with only those columns that it must have: no heartbeat, no lease owner."""
    yield from _judged(Double(optional_columns=False))


def _judged(double: Double) -> Iterator[Double]:
    with double:
        yield double
    print(f"--- history of {double.url}\n{double.history.text()}")
    careless = double.history.unconditional()
    assert not careless, "writes without a version:\n" + "\n".join(str(request) for request in careless)
