"""A program that is forked from a warm interpreter is the program that a new interpreter would have run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support import processes_of, wait_until
from tests.support.depth import DEEP
from tests.support.processes import operator_environment
from tests.support.warm import cold_processes, warm_processes

ABOUT = """
import os, pathlib, signal, sys, threading
proc = pathlib.Path("/proc/self")
told = {
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path[0], "cwd": os.getcwd(), "name": __name__,
    "parent": os.getppid(), "alone": threading.get_native_id() == os.getpid() == threading.main_thread().native_id,
    "env": dict(os.environ), "shown": (proc / "cmdline").read_text(), "given": (proc / "environ").read_text(),
    "umask": os.umask(0), "session": os.getsid(0) == os.getpid(), "group": os.getpgrp() == os.getpid(),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")), "locals": sorted(n for n in globals() if n[0] != "_"),
    "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD)],
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.mode, s.name, s.fileno())
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "input": sys.stdin.read(), "warnings": sys.warnoptions, "bytecode": sys.dont_write_bytecode,
    "main": sys.modules["__main__"].__dict__ is globals(),
}
import json
print(json.dumps(told))
"""

ENDS = {
    "nothing": "pass",
    "exit code": "import sys; sys.exit(7)",
    "exit text": "import sys; sys.exit('so be it')",
    "exit none": "raise SystemExit",
    "error": "def f():\n    1 / 0\nf()",
    "error in main": "1 / 0",
    "no program": "def",
    "interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(1)",
    "handled": "import signal; signal.signal(signal.SIGTERM, lambda *a: exit(3)); signal.raise_signal(signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "at exit": "import atexit; atexit.register(print, 'bye'); print('hello', end=' ')",
    "thread": "import threading; threading.Thread(target=print, args=('late',)).start()",
    "hard": "import os; print('lost'); os._exit(4)",
    "warning": "import warnings; warnings.warn('careful')",
    "never closed": "f = open('/dev/null')",
    "never awaited": "async def f(): pass\nf()",
    "loop": "import asyncio; print(asyncio.run(asyncio.sleep(0.01, 'slept')))",
    "child": "import subprocess, sys; print(subprocess.run(['sh', '-c', 'echo $0 $X'], capture_output=True).stdout)",
    "no output": "import os; os.close(1); print('x')",
    "random": "import random; random.seed(1); print(random.random())",
    "product": "from operator_core.cli import main; raise SystemExit(main(['tickets', 'show', 'x']))",
}


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Whatever form of the suite this is."""
    with warm_processes() if DEEP else nullcontext():
        yield


def told(words: list[str], folder: Path, *, cold: bool, **options: object) -> tuple[int, str, str]:
    env = options.pop("env", None) or operator_environment({"X": "é\n=", "HOME": str(folder)})
    with cold_processes() if cold else nullcontext():
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("way", ["text", "module", "file", "strict"])
def test_it_has_what_a_new_one_has(way: str, unbuffered: bool, tmp_path: Path) -> None:
    (tmp_path / "about.py").write_text(ABOUT)
    words = {
        "text": ["-c", ABOUT],
        "module": ["-m", "about"],
        "file": [str(tmp_path / "about.py")],
        "strict": ["-W", "error", "-c", ABOUT],
    }[way] + ["word", "with space", "--é"]
    env = operator_environment(
        {"X": "é\n=", **({"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} if unbuffered else {})}
    )
    seen = []
    for cold in (True, False):
        options = {"cwd": tmp_path, "input": "typed", "env": env, "start_new_session": way == "text"}
        code, out, err = told(words, tmp_path, cold=cold, **options)
        assert (code, err) == (0, "")
        seen.append(json.loads(out))
    assert seen[1] == seen[0]
    assert seen[0]["parent"] == os.getpid()


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("program", ENDS)
def test_it_ends_as_a_new_one_does(program: str, strict: bool, tmp_path: Path) -> None:
    words = [*(["-W", "error"] if strict else []), "-c", ENDS[program]]
    new, forked = (told(words, tmp_path, cold=cold, stdin=subprocess.DEVNULL) for cold in (True, False))
    if program in ("never closed", "never awaited", "no output"):
        # Said at the end of the process, in other words: what is said is that there is something to be said.
        assert (forked[:2], bool(forked[2])) == (new[:2], bool(new[2]))
    else:
        assert forked == new


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("heard", [True, False])
def test_it_hears_an_interrupt_where_a_new_one_does(heard: bool, tmp_path: Path) -> None:
    """A run that was sent to the background ignores it, and so does everything that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler if heard else signal.SIG_IGN)
    try:
        new, forked = (told(["-c", ENDS["interrupt"]], tmp_path, cold=cold) for cold in (True, False))
    finally:
        signal.signal(signal.SIGINT, before)
    assert forked == new
    assert new[0] == (-signal.SIGINT if heard else 0)


@pytest.mark.usefixtures("warm")
async def test_it_is_a_child_like_any_other(tmp_path: Path) -> None:
    wait = "import sys, time; print('here', flush=True); time.sleep(60)"
    mark = f"warm-{os.getpid()}"
    env = {**os.environ, "A": mark}
    with subprocess.Popen([sys.executable, "-c", wait, mark], stdout=subprocess.PIPE, env=env) as one:  # noqa: ASYNC220
        assert one.stdout is not None
        assert one.stdout.readline() == b"here\n"
        assert one.poll() is None
        assert processes_of(mark) == [one.pid]
        one.terminate()
        assert one.wait(10) == -signal.SIGTERM
    assert processes_of(mark) == []

    two = await asyncio.create_subprocess_exec(sys.executable, "-c", wait, mark, stdout=asyncio.subprocess.PIPE)
    assert two.stdout is not None
    assert await two.stdout.readline() == b"here\n"
    two.kill()
    assert await two.wait() == -signal.SIGKILL
    wait_until(lambda: not processes_of(mark))


@pytest.mark.usefixtures("warm")
def test_it_is_told_apart_from_one_that_must_be_new(tmp_path: Path) -> None:
    code = "import sys; print('operator_core.work.worker' in sys.modules)"
    plain = operator_environment()
    assert told(["-c", code], tmp_path, cold=False, env=plain)[1] == "True\n"
    for words, options in (
        (["-I", "-c", code], {}),
        (["-B", "-c", code], {}),
        (["-c", code], {"env": {**plain, "PYTHONPATH": "."}}),
        (["-c", code], {"preexec_fn": os.getpid}),
        (["-c", code], {"umask": 0o77}),
    ):
        assert told(words, tmp_path, cold=False, **{"env": plain, **options})[1] == "False\n", words
    with pytest.raises(FileNotFoundError):
        told(["-c", code], tmp_path, cold=False, cwd=tmp_path / "missing")


@pytest.mark.usefixtures("warm")
def test_it_dies_where_it_is_told_to(tmp_path: Path) -> None:
    code = "from operator_core.failpoints import reach; reach('a'); print('b', flush=True); reach('b')"
    env = operator_environment({"OPERATOR_CRASH_AT": "b"})
    for cold in (True, False):
        assert told(["-c", code], tmp_path, cold=cold, env=env) == (-signal.SIGKILL, "b\n", "")


def test_without_it_everything_is_new(cold: None, tmp_path: Path) -> None:
    code = "import sys; print('operator_core.work.worker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
