"""A server whose store is in trouble: one sentence, 503 and when to come back; and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from operator_core.client import Client
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft
from operator_core.model.person import Role
from tests.support import PostgresCluster, run_operator, wait_until_async
from tests.support.disks import remount, small_disk
from tests.support.serving import Serving
from tests.support.store import Work, column_of, start_work
from tests.support.web import make_tokens

__all__ = ["small_disk"]

SENTENCE = re.compile(r"[A-Z][^\n]*[a-z)]\.")


def incident(n: int | str) -> dict[str, Any]:
    return {"name": f"n{n}", "message": "x" * 20_000}


def headers(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


def assert_trouble(answer: httpx2.Response, words: str) -> None:
    """503, one sentence, and when to come back; as a program reads it, or as a page."""
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"].isdigit()
    assert "Traceback" not in answer.text
    if answer.headers["content-type"].startswith("text/html"):
        assert words in answer.text
        return
    detail = answer.json()["detail"]
    assert SENTENCE.fullmatch(detail), detail
    assert words in detail


async def start(store: str, folder: Path) -> tuple[Serving, dict[Role, str]]:
    async with Database.open(store) as database:
        tokens = await make_tokens(database)
    serving = Serving(folder / "server", store)
    await asyncio.to_thread(lambda: serving.url)
    return serving, tokens


def test_it_does_not_start_without_a_store_that_can_be_written(small_disk: Path) -> None:
    store = small_disk / "operator.db"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (1 << 20))
    done = run_operator("serve", "--port", "0", db=store)
    assert (done.returncode, done.stdout) == (1, "")
    full = f"The disk under {store} is full; free some space and start again, nothing stored is lost."
    assert done.stderr == f"Error: {full}\n"
    filler.unlink()
    remount(small_disk, "ro")
    done = run_operator("serve", "--port", "0", db=store)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: The database .*; (give it write permission or )?choose another .*\.\n", done.stderr)
    remount(small_disk, "rw")


async def test_a_disk_that_fills_up_and_is_freed(small_disk: Path, tmp_path: Path) -> None:
    store = str(small_disk / "operator.db")
    serving, tokens = await start(store, tmp_path)
    with serving:
        url, mine = serving.url, headers(tokens[Role.ADMIN])
        async with httpx2.AsyncClient(timeout=60) as client:
            (small_disk / "filler").write_bytes(b"x" * 200_000)
            made = 0
            answer = await client.post(f"{url}/api/v1/incidents", json=incident(made), headers=mine)
            while answer.status_code == 201 and made < 500:
                made += 1
                answer = await client.post(f"{url}/api/v1/incidents", json=incident(made), headers=mine)
            assert made > 3
            assert_trouble(answer, "is full; free some space")
            # What was said to be there is there, pages can be read, and the process lives.
            assert (await client.get(f"{url}/livez")).status_code == 200
            listed = await client.get(f"{url}/api/v1/tickets", params={"limit": 200}, headers=mine)
            assert len(listed.json()["items"]) == made
            _fill(small_disk / "rest")
            for path in ("/", "/tickets/1", "/audit"):
                page = await client.get(f"{url}{path}", headers=headers(tokens[Role.ADMIN], Accept="text/html"))
                assert page.status_code == 200, path
            assert (await client.get(f"{url}/readyz")).json()["store"] == "ok"
            (small_disk / "filler").unlink()
            (small_disk / "rest").unlink()
            answer = await client.post(
                f"{url}/api/v1/incidents", json=incident(made), headers={**mine, "Idempotency-Key": "k"}
            )
            assert answer.status_code == 201, answer.text
        serving.stop()
    async with Database.open(store) as database:
        assert len(await TicketDB(database).list_tickets(limit=1000)) == made + 1
        assert (await verify(database)).ok


async def test_a_database_that_becomes_read_only(fresh_postgres: str, tmp_path: Path) -> None:
    """As after a failover to a copy that only reads."""
    name = fresh_postgres.rpartition("/")[2]
    serving, tokens = await start(fresh_postgres, tmp_path)

    async def only_reads(yes: bool) -> None:
        set_it = f"ALTER DATABASE {name} SET default_transaction_read_only = {yes}"
        # Over another database, because over this one it may only be read.
        await column_of(fresh_postgres.removesuffix(name) + "postgres", set_it)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid != pg_backend_pid()"
        await column_of(fresh_postgres, others, name)

    with serving:
        url, mine = serving.url, headers(tokens[Role.ADMIN])
        async with httpx2.AsyncClient(timeout=60) as client:
            await only_reads(True)
            assert (await client.get(f"{url}/api/v1/tickets", headers=mine)).status_code == 200
            answer = await client.post(f"{url}/api/v1/incidents", json=incident(0), headers=mine)
            assert_trouble(answer, "is read-only; give it write permission")
            signed = await client.post(
                f"{url}/login", data={"token": tokens[Role.ADMIN]}, headers={"Accept": "text/html"}
            )
            assert_trouble(signed, "is read-only; give it write permission")
            async with asyncio.timeout(10):  # a login is found by reading alone
                assert (await client.get(f"{url}/api/v1/me", headers=mine)).status_code == 200
            # One that is started now shows what is there, and says what it cannot do.
            with Serving(tmp_path / "another", fresh_postgres) as another:
                there = await asyncio.to_thread(lambda: another.url)
                assert (await client.get(f"{there}/api/v1/me", headers=mine)).status_code == 200
                await wait_until_async(lambda: "is read-only; give it write permission" in another.text, 20)
                another.stop()
            await only_reads(False)
            answer = await client.post(f"{url}/api/v1/incidents", json=incident(0), headers=mine)
            assert answer.status_code == 201, answer.text
        serving.stop()


@pytest.mark.xdist_group("postgres-crash")
async def test_postgresql_is_restarted_under_live_streams(
    postgres_cluster: PostgresCluster, fresh_postgres: str, tmp_path: Path
) -> None:
    serving, tokens = await start(fresh_postgres, tmp_path)
    with serving:
        url, mine = serving.url, headers(tokens[Role.OPERATOR])
        async with (
            Database.open(fresh_postgres) as database,
            Client(url, tokens[Role.OPERATOR]) as client,
            httpx2.AsyncClient(timeout=60) as raw,
        ):
            work = await start_work(database, entries=3)
            read: list[int] = []
            changed: list[int] = []

            async def follow() -> None:
                async for found in client.stream(work.session_id):
                    if found.number is not None:
                        read.append(found.number)

            async def watch() -> None:
                async for change in client.changes(0):
                    if change.number is not None:
                        changed.append(change.number)

            tasks = [asyncio.create_task(follow()), asyncio.create_task(watch())]
            await wait_until_async(lambda: len(read) == 3, 20)
            # The connections of the readers stay: what they hear afterwards they hear on the same ones.
            postgres_cluster.crash()
            for path, accept in (
                ("/api/v1/tickets", "application/json"),
                ("/", "text/html"),
                ("/tickets/1", "text/html"),
            ):
                answer = await raw.get(f"{url}{path}", headers={**mine, "Accept": accept})
                assert_trouble(answer, "cannot be reached")
            lost = await raw.post(
                f"{url}/api/v1/incidents", json=incident(1), headers={**mine, "Idempotency-Key": "one"}
            )
            assert_trouble(lost, "cannot be reached")
            ready = await raw.get(f"{url}/readyz")
            assert (ready.status_code, ready.json()["store"]) == (503, "failed")
            assert (await raw.get(f"{url}/livez")).status_code == 200
            assert not any(task.done() for task in tasks), "a reader was sent away"
            postgres_cluster.start()
            again = await raw.post(
                f"{url}/api/v1/incidents", json=incident(1), headers={**mine, "Idempotency-Key": "one"}
            )
            assert again.status_code == 201, again.text
            for n in range(5):
                await _append(work, n)
            await wait_until_async(lambda: len(read) == 8, 30, what="the readers go on")
            assert read == list(range(8))
            await wait_until_async(lambda: changed and changed[-1] >= 5, 30)
            assert changed == sorted(set(changed))
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

            async def ready_again() -> bool:
                return bool((await raw.get(f"{url}/readyz")).status_code == 200)

            # The answer may be a second old.
            await wait_until_async(ready_again, what="the server says that it is ready")
            assert (await verify(database)).ok
        serving.stop()
        assert "hunter" not in serving.text


def _fill(path: Path) -> None:
    """Leave not one page free."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


async def _append(work: Work, n: int) -> None:
    await work.journal.append(Draft("reasoning", f"again {n}", f"again {n}", phase="worker_1"))
