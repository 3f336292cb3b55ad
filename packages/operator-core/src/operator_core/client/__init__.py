"""A typed client of a server (`operator serve`).

::

    from operator_core.client import Client

    async with Client("https://operator.example.com", token) as operator:
        ticket = await operator.submit("Make it faster.", repo="https://git.example.com/shop", checks=["pytest -q"])
        for session in (await operator.sessions(ticket_id=ticket.id)).items:
            async for event in operator.stream(session.session_id):
                print(event.kind, event.data)

It is the same interface that the product has on a store (:class:`operator_core.api.protocol.Api`).
"""

from __future__ import annotations

from operator_core.client.client import Client
from operator_core.client.events import StreamEvent

__all__ = ["Client", "StreamEvent"]
