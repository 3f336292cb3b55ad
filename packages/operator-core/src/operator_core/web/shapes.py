"""Answers of the API: JSON of our shapes, whatever texts are in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError
from starlette.responses import Response

__all__ = ["answer", "to_json"]

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def to_json(value: Any) -> bytes:
    """JSON (UTF-8, one line).

    Half of a surrogate pair, which a model may well have written, is in no encoding: it becomes a question mark.
    """
    try:
        return value.__pydantic_serializer__.to_json(value) if isinstance(value, BaseModel) else _ANY.dump_json(value)
    except PydanticSerializationError:
        plain = _ANY.dump_python(value, mode="json")
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value of one of our shapes, or a list of them, as the answer to a request.

    The answer is made here, and not by the framework from the declared shape: it is that shape already.
    """
    return Response(
        to_json(value),
        status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )
