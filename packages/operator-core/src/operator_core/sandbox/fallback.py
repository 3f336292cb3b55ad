"""``auto``: the first backend that can start here."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox.protocol import ExecResult, FileView, Job, Sandbox
from operator_core.sandbox.report import Report

__all__ = ["FirstThatStarts"]


class FirstThatStarts:
    """Several sandboxes of which one is used; see :class:`~operator_core.sandbox.protocol.Sandbox`.

    Args:
        makers: Each makes one; they are tried in this order.
    """

    name = "auto"

    def __init__(self, makers: Sequence[Callable[[], Sandbox]]) -> None:
        self._makers = makers
        self._chosen: Sandbox | None = None
        self._tried: Sandbox | None = None
        self._report: Report | None = None
        self._closed = False

    async def start(self) -> Report:
        """As the protocol says; the report warns if what was used is not the first choice.

        Raises:
            SandboxUnavailable: None of them can start; the error has all reasons and remedies.
            SandboxError: One of them started, and did not hold. The next one is not tried: a machine on which a
                boundary breaks is not one on which to take a weaker one.
        """
        if self._report is not None:
            return self._report
        failed: list[tuple[str, SandboxUnavailable]] = []
        for make in self._makers:
            if self._closed:
                raise SandboxError("This sandbox is closed; open a new one.")
            sandbox = self._tried = make()
            try:
                report = await sandbox.start()
            except SandboxUnavailable as error:
                failed.append((sandbox.name, error))
                continue
            self._chosen, self.name = sandbox, sandbox.name
            warnings = [f"{name} is not used: {error.reason}; to have it, {error.remedy}" for name, error in failed]
            if report.level == "confined":
                warnings.append("this is the degraded tier, allowed by `on_unavailable`; less is held than elsewhere")
            self._report = dataclasses.replace(report, warnings=(*report.warnings, *warnings))
            return self._report
        raise SandboxUnavailable(
            "; ".join(f"{name}: {error.reason}" for name, error in failed),
            "; or ".join(f"for {name}, {error.remedy}" for name, error in failed),
        )

    @property
    def _sandbox(self) -> Sandbox:
        if self._chosen is None:
            raise SandboxError("The sandbox has not been started, so nothing is known about it; start it first.")
        return self._chosen

    async def exec(self, command: str, **options: Any) -> ExecResult:
        return await self._sandbox.exec(command, **options)

    async def spawn(self, command: str, **options: Any) -> Job:
        return await self._sandbox.spawn(command, **options)

    @property
    def jobs(self) -> Mapping[str, Job]:
        return self._sandbox.jobs

    async def listen(self, port: int = 0) -> socket.socket:
        return await self._sandbox.listen(port)

    async def read_file(self, path: str, **part: int) -> FileView:
        return await self._sandbox.read_file(path, **part)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._sandbox.write_file(path, data)

    def report(self) -> Report:
        if self._report is None:
            raise SandboxError("The sandbox has not been started, so nothing is known about it; start it first.")
        return self._report

    async def close(self) -> None:
        self._closed = True
        if self._tried is not None:  # also one that is only starting
            await self._tried.close()
