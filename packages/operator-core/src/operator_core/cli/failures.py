"""Whatever goes wrong ends as one sentence on standard error and an exit code; never as a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from operator_core.cli.hints import completed
from operator_core.errors import OperatorError
from operator_core.text import printable

__all__ = ["INTERRUPTED", "TERMINATED", "guarded"]

INTERRUPTED = 130
TERMINATED = 143
_NO_SPACE = 28


def guarded(run: Callable[[], int]) -> int:
    """Call something and turn what it raises into a sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the program.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = run()
        sys.stdout.flush()
        if code == INTERRUPTED:
            _say("Interrupted.")
        return code
    except KeyboardInterrupt:
        _say("Interrupted.")
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BrokenPipeError:
        _drop_output()
        return 1
    except BaseException as error:
        return _explain(error)


def _explain(error: BaseException) -> int:
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _explain(error.exceptions[0])
    if isinstance(error, OperatorError):
        if os.environ.get("OPERATOR_DEBUG") == "1":
            _traceback(error)
        _say(f"Error: {completed(_one_line(str(error)))}")
        return error.exit_code
    if isinstance(error, OSError) and error.errno == _NO_SPACE:
        _drop_output()
        _say(f"Error: There is no space left to write {error.filename or 'the output'}; free some and start again.")
        return 1
    said = f"{type(error).__name__}: {_one_line(_clean(str(error)))[:300]}"
    _say(f"Error: Operator failed in a way nobody foresaw ({said}); this is a bug, {_details(error)}.")
    return 1


def _clean(text: str) -> str:
    from operator_core.redaction import Redactor

    return Redactor.from_environment().text(text)


def _details(error: BaseException) -> str:
    if os.environ.get("OPERATOR_DEBUG") == "1":
        _traceback(error)
        return "its details are above"
    path = _write_details(error)
    return f"its details are in {path}" if path else "set OPERATOR_DEBUG=1 to see its details"


def _write_details(error: BaseException) -> str | None:
    import traceback
    from pathlib import Path

    from operator_core import clock

    folder = Path("~/.operator/errors").expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{clock.new_session_id()}.txt"
        text = _clean("".join(traceback.format_exception(error)))
        path.write_text(f"{' '.join(sys.argv[:3])}\n\n{text}", encoding="utf-8", errors="backslashreplace")
        path.chmod(0o600)
    except OSError:
        return None
    return str(path)


def _traceback(error: BaseException) -> None:
    import traceback

    sys.stderr.write(printable(_clean("".join(traceback.format_exception(error)))))


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _drop_output() -> None:
    """Nobody reads any more: what is still buffered must not raise again at the end of the process."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
