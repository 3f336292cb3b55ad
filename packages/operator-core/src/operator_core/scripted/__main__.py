"""``python -m operator_core.scripted --brain module:name``: the scripted model server as a process."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from operator_core.errors import ConfigError, OperatorError
from operator_core.scripted.brain import Brain
from operator_core.scripted.process import KEY_VARIABLE
from operator_core.scripted.serve import ScriptedServer

__all__ = ["load_brain", "main"]

_PARENT_CHECK_S = 0.5


def load_brain(spec: str) -> Brain:
    """The brain that ``module:name`` or ``path/to/file.py:name`` names; a function is called without arguments.

    Raises:
        ConfigError: If there is no such thing, or it is no brain.
    """
    where, _, name = spec.rpartition(":")
    try:
        found: Any = getattr(_module(where), name)
    except (ImportError, AttributeError, OSError, ValueError) as exc:
        raise ConfigError(f"The brain `{spec}` cannot be loaded ({exc}); give --brain module:name.") from exc
    brain = found() if isinstance(found, type) or not hasattr(found, "reply") else found
    if not hasattr(brain, "reply"):
        raise ConfigError(f"`{spec}` gives no brain: it needs `async def reply(self, turn)`.")
    return cast(Brain, brain)


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    spec = importlib.util.spec_from_file_location(f"_brain_{Path(where).stem}", where)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _serve(server: ScriptedServer, port_file: Path | None, parent: int | None) -> None:
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    async with server:
        if port_file is not None:
            unfinished = port_file.with_name(port_file.name + ".new")
            unfinished.write_text(f"{server.port}\n", "ascii")
            unfinished.replace(port_file)
        print(server.banner, flush=True)
        while not end.is_set() and (parent is None or os.getppid() == parent):
            try:
                await asyncio.wait_for(end.wait(), None if parent is None else _PARENT_CHECK_S)
            except TimeoutError:
                continue


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m operator_core.scripted",
        description="An Anthropic-compatible server that is driven by a program, not by a model.",
        epilog=f"The environment variable {KEY_VARIABLE} sets the only API key that is accepted; default: any.",
    )
    parser.add_argument("--brain", required=True, metavar="MODULE:NAME", help="a brain or a function that makes one")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--port-file", type=Path, metavar="FILE", help="write the port there once it serves")
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when the parent is not this process any more"
    )
    options = parser.parse_args(argv)
    try:
        server = ScriptedServer(load_brain(options.brain), api_key=os.environ.get(KEY_VARIABLE), port=options.port)
        asyncio.run(_serve(server, options.port_file, options.with_parent))
    except OperatorError as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
