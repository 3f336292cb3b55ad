"""Blobs: large outputs, stored once under the hash of their content and named by the entries that belong to them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import IntegrityError

from operator_core.db.client import StoreClient
from operator_core.db.schema import blob_chunks

__all__ = ["Blobs", "blob_digests"]

_CHUNK = 512 * 1024
_CHUNKS = select(blob_chunks.c.data).where(blob_chunks.c.digest == bindparam("digest")).order_by(blob_chunks.c.n)


class Blobs(StoreClient):
    """Stores blobs and reads them, a chunk at a time."""

    async def store_blob(self, path: Path) -> str:
        """Store a (redacted) file under its SHA-256; memory use is one chunk.

        Returns:
            The digest (hex).
        """
        with path.open("rb") as file:
            digest = (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest()
            if await self.database.fetch(select(blob_chunks.c.n).where(blob_chunks.c.digest == digest).limit(1)):
                return digest
            file.seek(0)
            try:
                async with self.database.begin() as c:
                    n = 0
                    while chunk := file.read(_CHUNK):
                        await c.execute(insert(blob_chunks), {"digest": digest, "n": n, "data": chunk})
                        n += 1
            except IntegrityError:
                pass  # another session stored the same bytes meanwhile
        return digest

    async def read_blob(self, digest: str) -> AsyncIterator[bytes]:
        """The bytes of a blob, chunk by chunk."""
        async with self.database.read() as c:
            async for row in await c.stream(_CHUNKS, {"digest": digest}):
                yield row.data


def blob_digests(meta: str | None) -> list[str]:
    """The digests of large outputs that an entry's ``meta`` (JSON text) names: values of keys that end in ``_blob``."""
    if not meta or '_blob"' not in meta:
        return []
    found: list[str] = []
    todo: list[Any] = [json.loads(meta)]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            found += [v for k, v in value.items() if k.endswith("_blob") and isinstance(v, str)]
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return found
