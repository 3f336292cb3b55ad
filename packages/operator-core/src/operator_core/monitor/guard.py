"""Keeping other people's code at arm's length: it may raise, hang or block, and the monitor goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from operator_core.errors import MonitorError
from operator_core.monitor.protocols import SubjectProtocol

__all__ = ["ThreadSubject", "in_thread"]

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call something in a thread of its own that dies with the process, so that one that hangs blocks nothing.

    A pool would not do: its threads are waited for at the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only when the call returned None

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except StopIteration as stop:
            # A future cannot carry this one.
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as problem:
            error = problem
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class ThreadSubject:
    """A subject whose ``observe()`` runs in an event loop and a thread of its own, one call at a time.

    A plug-in that blocks where it should await then stops itself only, not the workers in the same process.
    """

    def __init__(self, subject: SubjectProtocol, name: str) -> None:
        self._subject = subject
        self._name = name
        self._thread: _LoopThread | None = None

    async def observe(self) -> dict[str, Any]:
        """As the subject's own.

        Raises:
            MonitorError: The call before has not come back yet.
        """
        if self._thread is None:
            self._thread = _LoopThread(self._name)
        if self._thread.busy:
            raise MonitorError("the last observe() has not come back yet")
        result = self._thread.start(self._subject)
        try:
            return await asyncio.wrap_future(result)
        except asyncio.CancelledError:
            self._thread.cancel()
            raise

    def close(self) -> None:
        """Let the thread end as soon as it can; the next :meth:`observe` starts another one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class _LoopThread:
    """An event loop in a daemon thread; all methods are for other threads."""

    def __init__(self, name: str) -> None:
        self.busy = False
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[dict[str, Any]] | None = None
        threading.Thread(target=self._serve, name=f"subject-{name}", daemon=True).start()

    def start(self, subject: SubjectProtocol) -> Future[dict[str, Any]]:
        result: Future[dict[str, Any]] = Future()
        self.busy = True

        async def call() -> dict[str, Any]:
            return await subject.observe()

        def begin() -> None:
            self._task = self._loop.create_task(call())
            self._task.add_done_callback(lambda task: self._settle(task, result))

        self._loop.call_soon_threadsafe(begin)
        return result

    def cancel(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task else None)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _settle(self, task: asyncio.Task[dict[str, Any]], result: Future[dict[str, Any]]) -> None:
        self.busy = False
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            if isinstance(error, asyncio.CancelledError):
                result.set_exception(MonitorError("observe() was cancelled"))
            elif error is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=5.0)
