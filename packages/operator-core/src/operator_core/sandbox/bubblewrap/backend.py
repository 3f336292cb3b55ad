"""The default backend on Linux: one bubblewrap per command, inside of one session.

Per command, because the kernel then ends everything a command started: its PID namespace dies with its first process.
What bubblewrap does not do by itself, and what is done about it here, was measured; each point has a test:

* its first process keeps the environment it was started with, and its arguments: both are readable inside, so it gets
  an empty environment and reads its options from a memory file;
* killing its outer process while it starts leaves orphans: the process id of the inner one is read and killed too,
  and a process beside the session does that when it is this process that was killed;
* host root keeps writable sysctls in a fresh ``/proc``: they are covered;
* vsock, io_uring, setuid bits and more are in no namespace: a seccomp filter refuses them;
* the kernel's user id 0 keeps some of its weight without any capability: started as root, commands are another user.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import files
from operator_core.sandbox.bubblewrap.diagnosis import diagnose
from operator_core.sandbox.bubblewrap.profile import build_etc, fixed_arguments, mount_arguments, system_places
from operator_core.sandbox.bubblewrap.tree import NamespaceTree
from operator_core.sandbox.call import State as Ended
from operator_core.sandbox.environment import build_environment, interpreter_prefixes, search_path
from operator_core.sandbox.layout import HOME, ROOM
from operator_core.sandbox.linux.cgroups import Group
from operator_core.sandbox.linux.guard import Guard
from operator_core.sandbox.linux.namespaces import Namespaces, View, can_administer, free_user
from operator_core.sandbox.linux.seccomp import SUPPORTED, build_filter
from operator_core.sandbox.mounts import Cover, covers, places, policy_mounts
from operator_core.sandbox.options import Options
from operator_core.sandbox.policy import Limits, Policy
from operator_core.sandbox.process import Process, signal_quietly, start_process
from operator_core.sandbox.protocol import ExecResult, RedactFilter
from operator_core.sandbox.report import Control, Report, State
from operator_core.sandbox.runner import RawResult
from operator_core.sandbox.selftest import attack as selftest
from operator_core.sandbox.selftest.promise import Promise
from operator_core.sandbox.session import Call, Launch, Session, SetupError, prologue

__all__ = ["BubblewrapSandbox"]

_STATE, _COMMAND = f"{ROOM}/state", f"{ROOM}/command"


@functools.lru_cache(maxsize=8)
def _version_of(program: str, changed: int) -> str:
    """Its version; asked once for each program (and time of its last change)."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, env={})
    return done.stdout.rpartition(" ")[2].strip() or "(version unknown)"


class BubblewrapSandbox(Session):
    """See the module. ``start`` tests it and refuses to go on if an attack succeeds."""

    name = "bubblewrap"
    maps = True

    def __init__(
        self,
        policy: Policy,
        session_dir: Path,
        redact: Callable[[], RedactFilter] | None = None,
        options: Options = Options(),
    ) -> None:
        super().__init__(policy, session_dir, redact, options)
        self._program = ""
        self._filter = b""
        self._search_path = ""
        self._namespaces = Namespaces()
        self._group = Group()
        self._guard = Guard()
        self._seen_uid: int | None = None
        self._kills = 0
        self._covered: dict[Path, frozenset[Cover]] = {}

    async def _open(self) -> Report:
        version = self._find()
        await self._guard.open()
        self._filter = build_filter()
        self._search_path = search_path((*self.policy.readable, *self.policy.writable))
        # In a thread, because many sessions start at once; it is waited for, because it must not go on after `close`.
        copying = asyncio.ensure_future(asyncio.to_thread(self._prepare_files))
        try:
            await self._namespaces.open(network=self.policy.network != "host", view=self._wanted_view())
            await asyncio.shield(copying)
        finally:
            await asyncio.wait({copying})
        if self.policy.run_as and os.geteuid() == 0 and self._namespaces.view is None:
            raise self._cannot_run_as(self._namespaces.why_no_view)
        if self.policy.network == "allowlist" and not self._namespaces.network:
            raise SandboxUnavailable(
                f"no proxy can be put in front of the commands' network ({self._namespaces.why_no_network})",
                'install util-linux, or set `network = "none"`',
            )
        await self._open_egress()
        try:
            return await self._examine(version)
        except SetupError as error:
            if self._namespaces.view is None:
                raise SandboxUnavailable(*diagnose(error.why)) from error
            if self.policy.run_as:
                raise self._cannot_run_as(error.why) from error
            self._namespaces.without_view(f"bubblewrap does not start as another user: {error.why}")
        try:
            return await self._examine(version)
        except SetupError as error:
            raise SandboxUnavailable(*diagnose(error.why)) from error

    def _prepare_files(self) -> None:
        build_etc(self._layout.etc, network=self.policy.network == "host")
        self._group.make(self.policy.limits)

    async def _examine(self, version: str) -> Report:
        how = {} if self._namespaces.network else {"network": "own, empty network namespace for each command and job"}
        promise = Promise(f"bubblewrap {version}", how=how)
        report = await selftest.examine(promise, self.policy, self._layout, self._attack, proxy=self._proxy)
        controls = {**report.controls, **self._group_controls(report.controls)}
        warnings = list(report.warnings)
        if os.geteuid() == 0:
            controls["user"] = self._user_control()
            if controls["user"].state != "verified":
                warnings.append("commands have the kernel's user id 0; start Operator as an ordinary user")
        return dataclasses.replace(report, controls=controls, warnings=tuple(warnings))

    def _user_control(self) -> Control:
        view = self._namespaces.view
        if view is None:
            why = self._namespaces.why_no_view or "as the policy says"
            how = f"kernel uid 0 ({why}): capabilities are dropped, sysctls covered and setuid bits refused"
            return Control("partial", how)
        if self._seen_uid != view.uid:
            raise SandboxError(f"Commands were to be user {view.uid} and are {self._seen_uid}; run `operator doctor`.")
        return Control("verified", f"kernel uid {view.uid}, seen from outside; files in the workspace keep their owner")

    def _group_controls(self, found: Mapping[str, Control]) -> dict[str, Control]:
        limits, group = self.policy.limits, self._group
        words = {
            "memory": f"{limits.memory >> 20} MiB for the whole session (control group)",
            "pids": f"{group.processes} processes for the whole session (control group)",
        }
        controls: dict[str, Control] = {}
        for controller, name in (("memory", "limits.memory"), ("pids", "limits.procs")):
            single = found[name]
            if controller not in group.controllers or not group.used(controller):
                how = f"{single.how}; {group.why_not.get(controller, 'the control group counted nothing')}"
                controls[name] = Control(single.state, how)
            elif single.state == "not_enforced":
                controls[name] = Control("partial", f"{words[controller]}; {single.how}")
            else:
                per_process = single.how.removesuffix("; no limit for all together")
                state: State = "partial" if "not attacked" in per_process else "verified"
                controls[name] = Control(state, f"{words[controller]}, which counted this self-test; {per_process}")
        return controls

    def _wanted_view(self) -> View | None:
        policy = self.policy
        if os.geteuid() != 0 or policy.run_as == 0:
            return None
        if not can_administer():
            self._namespaces.why_no_view = "this process has no right to mount (CAP_SYS_ADMIN)"
            return None
        shown = (*interpreter_prefixes(), *policy.readable, *policy.secret_files.values())
        paths = {path: False for path in shown if path.exists()}
        paths |= {path: True for path in (self._layout.root, policy.workspace, *policy.writable) if path.exists()}
        return View(free_user() if policy.run_as is None else policy.run_as, tuple(paths.items()))

    def _cannot_run_as(self, why: str) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"commands cannot become user {self.policy.run_as} ({why})",
            "take `run_as` off, or start Operator as that user instead of root",
        )

    def _source(self, path: Path) -> Path:
        view = self._namespaces.view
        return path if view is None else view.staged(path)

    async def _listen(self, port: int) -> socket.socket:
        if self.policy.network == "host":
            return await super()._listen(port)
        return await self._namespaces.listen(port)

    def _find(self) -> str:
        """Look for the program and return its version.

        Raises:
            SandboxUnavailable: This is not Linux, not a known processor, or bubblewrap is not installed.
        """
        if sys.platform != "linux":
            raise SandboxUnavailable(f"bubblewrap needs Linux and this is {sys.platform}", "run Operator on Linux")
        if os.uname().machine not in SUPPORTED:
            raise SandboxUnavailable(
                f"there is no system call table for {os.uname().machine}", "run Operator on x86_64 or aarch64"
            )
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed (no `bwrap` on PATH)",
                "install it with `apt-get install bubblewrap`, `dnf install bubblewrap` or `apk add bubblewrap`",
            )
        self._program = program
        return _version_of(program, os.stat(program).st_mtime_ns)

    async def _attack(self, script: str, env: Mapping[str, str]) -> ExecResult:
        # Not with the policy's own limits on output, which may be tiny.
        return await self._exec(script, cwd=self._start, env=env, limits=Limits(timeout_s=20.0))

    def _launch(self, call: Call) -> Launch:
        limits = self.policy.limits
        script = prologue(
            _STATE,
            self._start,
            {
                "c": 0,
                "n": limits.nofile,
                "d": limits.memory >> 10,
                "f": limits.file_size >> 10,
                # In here, behind the user namespace, it counts only the processes of this command.
                "u": limits.procs,
            },
            f'IFS= read -r -d "" __c <{_COMMAND}',
            count=True,
        )
        fixed = {"PATH": self._search_path, "HOME": HOME, "TMPDIR": "/tmp"}
        own_network = self.policy.network != "host" and not self._namespaces.network
        options = fixed_arguments(self.policy, self._layout, own_network=own_network, source=self._source)
        # bubblewrap follows links in what it binds. A command that is running now could replace a path by a link after
        # we have looked, unless it sees that path covered too; and where it does not, nothing is protected from it.
        over = [item for item in covers(self.policy) if all(item in seen for seen in self._covered.values())]
        options += mount_arguments(policy_mounts(self.policy, self._layout, over), self._source)
        options += ["--bind", str(self._source(call.state)), _STATE]
        environment = build_environment(self.policy, fixed, call.env)
        tree = NamespaceTree(self._note_user if self._report is None else None)

        async def spawn(stdout: int, stderr: int) -> Process:
            await self._namespaces.renew()
            if (view := self._namespaces.view) is not None:
                for pipe in (stdout, stderr):
                    os.fchown(pipe, view.uid, view.uid)  # for /dev/stdout and /dev/stderr, which open it once more
            with contextlib.ExitStack() as stack:
                command = _memory_file("command", call.command.encode("utf-8", "surrogateescape"), stack)
                rules = _memory_file("seccomp", self._filter, stack)
                info_read, info_write = os.pipe()
                tree.listen(info_read)
                stack.callback(os.close, info_write)
                # What must not be missing comes first: this process may be killed while it writes them.
                more = ["--seccomp", str(rules), "--info-fd", str(info_write), "--clearenv", *options]
                more += ["--ro-bind-data", str(command), _COMMAND, "--remount-ro", "/", "--chdir", "/"]
                for name, value in environment.items():
                    more += ["--setenv", name, value]
                data = b"\0".join(os.fsencode(option) for option in more) + b"\0"
                arguments, release = os.pipe()
                stack.callback(os.close, release)
                reading = stack.enter_context(contextlib.ExitStack())
                reading.callback(os.close, arguments)
                argv = [*self._namespaces.entrance(), self._program, "--args", str(arguments), "--"]
                argv += ["bash", "--noprofile", "--norc", "-c", script, "bash", call.cwd, self._guard.mark]
                fds = (command, rules, info_write, arguments)
                try:
                    # This search path is for bubblewrap's own look-up of bash, in the sandbox.
                    process = await start_process(
                        argv,
                        stdout=stdout,
                        stderr=stderr,
                        env={"PATH": "/usr/bin:/bin"},
                        pass_fds=fds,
                        thread=self._group.thread,
                    )
                    reading.close()  # if it has failed, writing must too, and not wait for us
                    self._let_go(process, release, data)
                except BlockingIOError as error:
                    tree.forget()
                    raise SandboxError(
                        "The session has as many processes as it may have, so the command has not run; stop a job."
                    ) from error
                except BaseException:
                    tree.forget()
                    raise
                return process

        self._covered[call.state] = frozenset(over)
        return Launch(spawn, tree)

    def _release(self, number: int, call: Call) -> Ended:
        del self._covered[call.state]
        return super()._release(number, call)

    def _let_go(self, process: Process, pipe: int, options: bytes) -> None:
        """Give bubblewrap its options. Until it has them it starts nothing, so what it starts is in the group."""
        try:
            self._group.add(process.pid)
        except OSError as error:
            signal_quietly(process.pid, signal.SIGKILL, group=True)
            raise SandboxError(f"The command cannot be limited ({error.strerror}), so it has not run.") from error
        view = memoryview(options)
        with contextlib.suppress(BrokenPipeError):  # it has failed, and says why
            while view:
                view = view[os.write(pipe, view) :]

    def _note_user(self, uid: int) -> None:
        self._seen_uid = uid

    def _notices(self) -> list[str]:
        before, self._kills = self._kills, self._group.kills()
        if self._kills <= before:
            return []
        limit = self.policy.limits.memory >> 20
        return [f"The session reached its memory limit of {limit} MiB, and the kernel killed a process of it."]

    def _setup_error(self, raw: RawResult) -> str:
        text = raw.stderr.text().strip()
        return text.splitlines()[-1].rstrip(".") if text.startswith(("bwrap: ", "nsenter: ")) else ""

    async def close(self) -> None:
        await super().close()
        self._namespaces.close()
        await self._group.remove()
        await self._guard.close()

    def _places(self) -> list[files.Place]:
        return [*system_places(self._layout), *places(self.policy, self._layout, mapped=True)]


def _memory_file(name: str, data: bytes, stack: contextlib.ExitStack) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
