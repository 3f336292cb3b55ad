"""The rate limiter of `operator demo`, to start and to break by hand; see README.md beside this file."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from operator_core.demo import RunningService, break_service, open_demo, write_demo
from operator_core.errors import OperatorError


def start(folder: Path, port: int) -> None:
    """Lay the folder out if it is not there, and run the service until Ctrl-C or SIGTERM."""
    demo = open_demo(folder) if (folder / "operator.toml").exists() else write_demo(folder, port)
    ends = {signal.SIGINT, signal.SIGTERM}
    with RunningService(demo):
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        print(f"It serves at {demo.url}; its configuration for Operator is {demo.config}. Ctrl-C ends it.", flush=True)
        signal.sigwait(ends)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["start", "break"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8431, help="on 127.0.0.1, for a new folder (default: %(default)s)")
    options = parser.parse_args()
    try:
        if options.what == "start":
            start(options.folder, options.port)
        else:
            break_service(open_demo(options.folder))
    except (OperatorError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
