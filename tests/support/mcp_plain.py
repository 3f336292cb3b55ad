"""An MCP server of the standard library alone, so that it runs wherever there is a Python: ``python3 mcp_plain.py``.

Its tools show what its process can do: write a file, reach an address, say who it is, hang, end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["PLAIN", "main"]

PLAIN = str(Path(__file__).resolve())

_STRING = {"type": "string"}
_TOOLS = {
    "note": {"file": _STRING},
    "reach": {"host": _STRING, "port": {"type": "integer"}},
    "who": {},
    "hang": {"file": _STRING},
    "die": {},
}


def _do(name: str, given: dict[str, Any]) -> str:
    if name == "note":
        with open(given["file"], "a", encoding="utf-8") as file:
            file.write("x\n")
        return "noted"
    if name == "reach":
        with socket.create_connection((given["host"], given["port"]), timeout=3):
            return "reached"
    if name == "who":
        return json.dumps({"uid": os.getuid(), "cwd": os.getcwd(), "secret": os.environ.get("HOUSE_KEY", "(not set)")})
    if name == "hang":
        with open(given["file"], "a", encoding="utf-8") as file:
            file.write("x\n")
        time.sleep(3600)
    os._exit(7)


def _answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object"}
        tools = [
            {"name": n, "description": f"Does {n}.", "inputSchema": {**schema, "properties": p}}
            for n, p in _TOOLS.items()
        ]
        return {"tools": tools}
    if method == "tools/call":
        try:
            text, wrong = _do(params["name"], params.get("arguments") or {}), False
        except OSError as error:
            text, wrong = f"{type(error).__name__}: {error.strerror or error}", True
        return {"content": [{"type": "text", "text": text}], "isError": wrong}
    return {}


def main() -> None:
    """Answer one line after the other."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            result = _answer(asked["method"], asked.get("params") or {})
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
