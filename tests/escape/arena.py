"""Runs the whole corpus in one sandbox of one backend, as the user that runs it.

``python -m tests.escape.arena BACKEND`` prints one JSON document: outcome and details of each attack.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from operator_core.clock import monotonic
from operator_core.errors import OperatorError
from operator_core.sandbox import Limits, Policy, Report, Sandbox, open_sandbox
from operator_core.sandbox.linux.seccomp import system_call
from operator_core.sandbox.options import Options
from tests.escape.attack import Attack, Benign
from tests.escape.attacks_network import PROXY_WORK
from tests.escape.corpus import ATTACKS, BENIGN, PROXY_ATTACKS
from tests.escape.field import MASKED, Field
from tests.escape.host import Host

__all__ = ["Arena"]

LIMITS = Limits(procs=64, memory=256 << 20, file_size=16 << 20, shm=16 << 20, timeout_s=10, grace_s=0.2, nofile=1024)
_CALLS = (
    "fchmodat2", "pidfd_getfd", "keyctl", "add_key", "setns", "open_by_handle_at", "unshare", "clone", "clone3",
    "io_uring_setup", "perf_event_open", "bpf", "userfaultfd", "init_module", "reboot", "sethostname", "iopl", "fsopen",
    "kcmp",
)  # fmt: skip
_KEY = "AGENT_API_KEY"


class Arena:
    """A sandbox, a host around it, and a workspace that is as it was before each attack.

    Args:
        backend: Name of the backend.
        folder: A new one.
        options: See :class:`Options`.
    """

    def __init__(self, backend: str, folder: Path, options: Options) -> None:
        self._folder, self._options = folder, options
        self.backend = backend
        self.workspace = folder / "ws"
        self._place = folder / "host"
        self._template = folder / "template"
        self._state = folder / "session" / "state"
        self._numbers = 0
        self._place.mkdir()
        self._make_template()
        self.workspace.mkdir()
        self._tidy()
        self.host = Host(folder / "services")
        self.sandbox: Sandbox
        self._calls = json.dumps({name: number for name in _CALLS if (number := _number(name)) is not None})

    async def open(self, *, proxy: bool) -> Report:
        """Start host and sandbox.

        Args:
            proxy: Whether a proxy is to reach one service of the host.
        """
        await self.host.open()
        policy = Policy(
            self.workspace,
            masked=(MASKED,),
            limits=LIMITS,
            network="allowlist" if proxy else "none",
            allow_hosts=(f"127.0.0.1:{self.host.variables['LISTED']}",) if proxy else (),
        )
        self.sandbox = open_sandbox(self.backend, policy, session_dir=self._folder / "session", options=self._options)
        try:
            return await self.sandbox.start()
        except BaseException:
            await self.host.close()
            raise

    async def close(self) -> None:
        """End both."""
        await self.sandbox.close()
        await self.host.close()

    async def fight(self, attack: Attack) -> tuple[str, str]:
        """Outcome and details of one attack."""
        if self.backend == "none" and attack.unsafe:
            return "not run", attack.unsafe
        self._tidy()
        self._numbers += 1
        field = Field(self.host, self._place / f"a{self._numbers}", self.workspace, LIMITS, self._numbers)
        field.key = os.environ[_KEY]
        try:
            if attack.prepare is not None:
                attack.prepare(field)
            field.begin(with_victim=attack.with_victim)
            await self._commands(attack, field)
            await asyncio.sleep(0)
            won = attack.witness(field)
            if not won and attack.witness.__name__ == "heard":
                await asyncio.sleep(0.02)
                won = attack.witness(field)
            return ("escaped" if won else "held"), field.output[-400:]
        finally:
            field.end()
            for path in self._state.iterdir():
                if not path.is_file() or path.is_symlink():
                    _remove(path)

    async def work(self, benign: Benign) -> tuple[str, str]:
        """Whether honest work is done, and the output."""
        self._tidy()
        said = ""
        env = {"KIT": str(self.workspace / "kit.py"), "LISTED": self.host.variables["LISTED"], "ID": "benign"}
        for command, cwd in await self._calls_of(benign.commands):
            result = await self.sandbox.exec(command, timeout=60, cwd=cwd, env=env)
            said += result.stdout.text() + result.stderr.text()
            if result.exit_code != 0:
                return "broken", f"exit code {result.exit_code} ({result.reason}): {said[-400:]}"
        return ("works" if benign.says in said else "broken"), said[-400:]

    async def _commands(self, attack: Attack, field: Field) -> None:
        free = _free_port()
        kit = {"KIT": str(self.workspace / "kit.py"), "CALLS": self._calls, "FREE": str(free)}
        # In a container, and without a sandbox.
        kit["PLATFORM"] = f"/run/operator/state {self._state}"
        env = {**field.variables(), **kit}
        job = None
        if attack.job:
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
            job = await self.sandbox.spawn(f"export {words}; {attack.job}")
            await asyncio.sleep(0.15)
        watching = [asyncio.ensure_future(_count(field))] if attack.witness.__name__ == "many" else []
        if attack.witness.__name__ == "_met":
            watching.append(asyncio.ensure_future(_visit(field, free)))
        try:
            for command, cwd in await self._calls_of(attack.commands):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(attack.timeout if attack.cancel else None), _deadline():
                        seconds = attack.timeout + 10 * attack.cancel
                        field.results.append(await self.sandbox.exec(command, env=env, timeout=seconds, cwd=cwd))
        except OperatorError as error:
            field.text += str(error)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            if job is not None:
                await job.kill()

    async def _calls_of(self, commands: str | tuple[str, ...]) -> list[tuple[str, str | None]]:
        """Commands and where they run. Of several the directory persists, as in a session, from the workspace on."""
        if isinstance(commands, str):
            return [(commands, str(self.workspace))]
        await self.sandbox.exec(f"cd '{self.workspace}'")
        return [(command, None) for command in commands]

    def _make_template(self) -> None:
        git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"]}
        words = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
        self._template.mkdir()
        for line in (["init", "-q", "."], ["config", "user.name", "a"], ["config", "user.email", "a@example.org"]):
            subprocess.run(["git", *words, *line], cwd=self._template, env=git, check=True)
        (self._template / "README.md").write_text("A workspace.\n")
        (self._template / ".git" / "hooks" / "pre-push").write_text("#!/bin/sh\n")
        for name in (".vscode/tasks.json", ".envrc", MASKED):
            (self._template / name).parent.mkdir(exist_ok=True)
            (self._template / name).write_text("untouched\n")
        shutil.copy(Path(__file__).with_name("kit.py"), self._template / "kit.py")
        subprocess.run(["git", *words, "add", "README.md"], cwd=self._template, env=git, check=True)
        subprocess.run(["git", *words, "commit", "-qm", "First"], cwd=self._template, env=git, check=True)

    def _tidy(self) -> None:
        """Everything in the workspace as it was, where it is not; what a backend has mounted stays the same files."""
        for path in self.workspace.iterdir():
            if not (self._template / path.name).exists():
                _remove(path)
        _restore(self._template, self.workspace)


def _restore(source: Path, target: Path) -> None:
    if source.is_dir():
        if target.is_symlink() or not target.is_dir():
            _remove(target)
            target.mkdir()
        for path in source.iterdir():
            _restore(path, target / path.name)
        if source.name in ("hooks", ".vscode", "conf"):
            for path in target.iterdir():
                if not (source / path.name).exists():
                    _remove(path)
    elif target.is_symlink() or not target.is_file() or target.read_bytes() != source.read_bytes():
        if target.is_file() and not target.is_symlink() and target.stat().st_nlink == 1:
            target.write_bytes(source.read_bytes())
        else:
            _remove(target)
            shutil.copy2(source, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _number(name: str) -> int | None:
    try:
        return system_call(name)
    except KeyError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    """For a platform that hangs as a whole: then no time limit of the event loop would be heard."""

    def hung(*_: object) -> None:
        raise TimeoutError("the platform hung")

    signal.signal(signal.SIGALRM, hung)
    signal.alarm(15)
    try:
        yield
    finally:
        signal.alarm(0)


async def _count(field: Field) -> None:
    while True:
        field.count()
        await asyncio.sleep(0.05)


async def _visit(field: Field, port: int) -> None:
    """Come by until somebody answers, as a client of the host would."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            field.server_reached = True
            writer.close()
            return


async def main() -> None:
    """See the module."""
    if _KEY not in os.environ:  # from the start, so that the kernel shows it to whoever may look
        os.environ[_KEY] = secrets.token_hex(16)
        os.execv(sys.executable, sys.orig_argv)
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--image")
    parser.add_argument("--only", default="", help="a part of a name")
    parser.add_argument("--proxy", action="store_true", help="the network allowlist, and attacks on it alone")
    parser.add_argument("--idle", action="store_true", help="do nothing instead of each attack")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="operator-escape-")).resolve()
    seen: dict[str, Any] = {"attacks": {}, "benign": {}}
    try:
        arena = Arena(words.backend, folder, Options(docker_image=words.image, on_unavailable="degrade"))
        seen["report"] = (await arena.open(proxy=words.proxy)).to_dict()
        try:
            attacks = ATTACKS
            if words.proxy:
                attacks = {n: a for n, a in ATTACKS.items() if n.startswith("network: ")} | PROXY_ATTACKS
            for name, attack in attacks.items():
                if words.idle:
                    attack = attack._replace(commands="echo $ID", prepare=None, job="", timeout=10.0)
                if words.only in name:
                    seen["attacks"][name] = await _timed(arena.fight(attack))
            for name, benign in ({PROXY_WORK.name: PROXY_WORK} if words.proxy else BENIGN).items():
                if words.only in name:
                    seen["benign"][name] = await _timed(arena.work(benign))
        finally:
            await arena.close()
    except OperatorError as error:
        seen["unavailable"] = str(error)
    except Exception:
        seen["broken"] = traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    json.dump(seen, sys.stdout)


async def _timed(work: Any) -> tuple[str, str, float]:
    started = monotonic()
    outcome, details = await work
    return outcome, details, round(monotonic() - started, 3)


if __name__ == "__main__":
    asyncio.run(main())
