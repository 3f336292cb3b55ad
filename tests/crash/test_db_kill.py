"""``kill -9`` in the middle of appends: what was acknowledged is there, nothing is torn, the next one goes on."""

from __future__ import annotations

import asyncio
import random
import signal
import sys

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from tests.support.store import column_of

KILLS = 5

# Claims the ticket and writes until it is killed; says each batch after the store has acknowledged it.
WRITER = """
import asyncio, os, sys
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.model.entry import Draft

async def main():
    async with Database.open(sys.argv[1]) as database:
        queue, audit, me = WorkQueue(database), AuditLogDB(database), f"writer-{os.getpid()}"
        await queue.register(me, 600)
        (claim,) = await queue.claim(me)
        session = claim.ticket.session_id or await audit.create_session(claim.ticket_id, claim=claim)
        journal = await audit.journal(session, claim)
        print(me, flush=True)
        n = 0
        while True:
            await journal.append(*[Draft("note", f"{me} {n} {part}", "x" * 3000) for part in range(3)])
            print(n, flush=True)
            n += 1

asyncio.run(main())
"""


async def test_nothing_acknowledged_is_lost_and_no_batch_is_torn(store_url: str) -> None:
    rng = random.Random(7)
    acknowledged: list[tuple[str, int]] = []
    async with Database.open(store_url) as database:
        queue, audit = WorkQueue(database), AuditLogDB(database)
        ticket = await TicketDB(database).open_ticket("disk", "full")
        for _ in range(KILLS):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WRITER, store_url, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            worker = (await process.stdout.readline()).decode().strip()
            first = await process.stdout.readline()
            await asyncio.sleep(rng.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            rest, _ = await process.communicate()
            # The last line may be cut off, like everything else of this process.
            lines = (first + rest).decode().split("\n")[:-1]
            acknowledged += [(worker, int(line)) for line in lines]
            await column_of(store_url, "UPDATE workers SET lease_until = 1 WHERE id = $1", worker)
            assert await queue.reap() == 1
        session_id = (await TicketDB(database).get_ticket(ticket.id or 0)).session_id
        assert session_id is not None
        entries = await audit.entries(session_id)
        report = await verify(database)
        assert report.ok, report.problem
        assert [e.seq for e in entries] == list(range(len(entries)))
        written = [tuple(e.content.split()) for e in entries]
        assert len(written) == len(set(written)), "something was written twice"
        batches = [written[n : n + 3] for n in range(0, len(written), 3)]
        assert all([part for _, _, part in batch] == ["0", "1", "2"] for batch in batches), "a batch was torn"
        there = {(worker, int(n)) for (worker, n, _), *_ in batches}
        assert set(acknowledged) <= there
        assert len(there - set(acknowledged)) <= KILLS, "at most one batch of each was written and not answered"
        assert len({worker for worker, _ in there}) == KILLS
        assert [e.fence for e in entries] == sorted(e.fence or 0 for e in entries)
