"""Style sheets, scripts and pictures of the console, under addresses that change with their content."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from operator_core.errors import NotFound

__all__ = ["router", "static_url"]

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".LICENSE": "text/plain; charset=utf-8",
}
_YEAR = "public, max-age=31536000, immutable"

router = APIRouter()


class _Asset(NamedTuple):
    media_type: str
    data: bytes
    packed: bytes
    tag: str


class _Assets(NamedTuple):
    version: str
    files: dict[str, _Asset]


@cache
def _assets() -> _Assets:
    """All of them; one version for all, so that a script finds the ones it imports beside itself."""
    files: dict[str, _Asset] = {}
    whole = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*")):
        media_type = _TYPES.get(path.suffix)
        if media_type is None or not path.is_file():
            continue
        name, data = path.relative_to(_FOLDER).as_posix(), path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        whole.update(f"{name}\0{digest}\0".encode())
        files[name] = _Asset(media_type, data, gzip.compress(data, 9, mtime=0), f'"{digest[:16]}"')
    return _Assets(whole.hexdigest()[:12], files)


def static_url(name: str) -> str:
    """Address of an asset.

    Args:
        name: Its path below ``static``.

    Raises:
        KeyError: There is none of that name: a mistake in a template.
    """
    assets = _assets()
    if name not in assets.files:
        raise KeyError(f"no asset is called {name!r}")
    return f"/static/{assets.version}/{name}"


@router.get("/static/{version}/{name:path}", include_in_schema=False)
async def asset(request: Request, version: str, name: str) -> Response:
    """One file; an address of another version is answered with what there is now, and not kept."""
    assets = _assets()
    found = assets.files.get(name)
    if found is None:
        raise NotFound("There is no such file; load the page again.")
    headers = {
        "Cache-Control": _YEAR if version == assets.version else "no-cache",
        "ETag": found.tag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and len(found.packed) < len(found.data):
        return Response(found.packed, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.data, media_type=found.media_type, headers=headers)
