"""Dev boxes: found, made, set up and removed over the REST interface of the DevCenter (requirements 2.2.11)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from operator_core.clock import Clock
from operator_core.text import clip, printable
from operator_dataverse import __version__
from operator_dataverse.client import Answer, Credential, Http, open_credential
from operator_dataverse.errors import DataverseError, Refused
from operator_dataverse.fleet.customizations import Group
from operator_dataverse.fleet.operations import Operation, begun, failure_of, look, wait_for
from operator_dataverse.settings import DataverseSettings

__all__ = ["API_VERSION", "RESOURCE", "Connection", "Customization", "DevBox", "DevBoxes", "Provisioned", "next_name"]

API_VERSION = "2024-02-01"
RESOURCE = "https://devcenter.azure.com"
"""What access tokens for a DevCenter are asked for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}", re.ASCII)
_USER = re.compile(r"me|[0-9A-Fa-f-]{36}", re.ASCII)
_BAD_ENDS = frozenset({"Failed", "Canceled"})
_GOOD_ENDS = frozenset({"Succeeded", "ProvisionedWithWarning"})
_PROVISION_S = 35 * 60.0
_MOST_NAMES = 20
_MOST_PAGES = 100


@dataclass(frozen=True)
class DevBox:
    """One dev box.

    Attributes:
        name: Its name.
        pool: Pool it was made from.
        user: Id of the person it belongs to.
        provisioning_state: ``Creating``, ``Succeeded``, ``Failed`` …
        power_state: ``Running``, ``Deallocated``, ``Hibernated`` …; empty: unknown.
        action_state: What is done to it now, if anything.
        error: Why it failed; empty: it did not.
    """

    name: str
    pool: str = ""
    user: str = ""
    provisioning_state: str = ""
    power_state: str = ""
    action_state: str = ""
    error: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        return self.provisioning_state in _GOOD_ENDS

    @property
    def failed(self) -> bool:
        """Whether it never will be."""
        return self.provisioning_state in _BAD_ENDS

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Connection:
    """Where a dev box is reached: in a browser, and with a remote desktop program; empty: not at all yet."""

    web_url: str = ""
    rdp_url: str = ""


@dataclass(frozen=True)
class Customization:
    """How far a group of tasks is on a box.

    Attributes:
        name: The group.
        status: ``NotStarted``, ``Running``, ``Succeeded``, ``Failed``, ``ValidationFailed``.
        tasks: Name and status of each task.
        error: What failed; empty: nothing.
    """

    name: str
    status: str
    tasks: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Provisioned:
    """A box that was asked for.

    Attributes:
        name: Its name.
        operation: What the service does about it.
        existed: It was there already, so that nothing was begun.
    """

    name: str
    operation: Operation
    existed: bool = False


class DevBoxes:
    """The dev boxes of one project.

    Args:
        http: The DevCenter.
        project: Name of the project.
        pool: Pool that new boxes come from; only needed to make one.
        user: Whose boxes: ``me``, or the id of a person in the directory.
        poll_s: Between two looks at something that takes long.
    """

    def __init__(
        self, http: Http, project: str, pool: str | None = None, *, user: str = "me", poll_s: float = 30.0
    ) -> None:
        if not _USER.fullmatch(user):
            raise Refused(f"{user!r:.60} is no id of a person in the directory; give the GUID, or `me`.")
        self._http = http
        self._project = _named(project, "project")
        self._pool = pool
        self._user = user
        self._poll_s = poll_s

    @classmethod
    def open(
        cls,
        settings: DataverseSettings,
        credential: Credential | None = None,
        *,
        user: str = "me",
        poll_s: float = 30.0,
        clock: Clock | None = None,
    ) -> DevBoxes:
        """The project of the settings.

        Raises:
            NotConfigured: ``devcenter_url`` or ``devcenter_project`` is missing.
        """
        settings = settings.needs("devcenter_url", "devcenter_project")
        http = Http(
            settings.devcenter_url or "",
            # The token of Dataverse is for Dataverse; a DevCenter's has a variable of its own.
            credential if credential is not None else open_credential(settings, token_env="DEVCENTER_TOKEN"),
            resource=RESOURCE,
            timeout_s=settings.timeout_s,
            retry_s=settings.retry_s,
            clock=clock,
            # The firewall in front of it turns the default names of HTTP libraries away.
            headers={"User-Agent": f"OperatorDevBoxes/{__version__}"},
        )
        return cls(http, settings.devcenter_project or "", settings.devcenter_pool, user=user, poll_s=poll_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def list(self) -> list[DevBox]:
        """All boxes, by name."""
        path: str = f"projects/{self._project}/users/{self._user}/devboxes"
        params: dict[str, str] | None = {"api-version": API_VERSION}
        boxes: list[DevBox] = []
        for _ in range(_MOST_PAGES):
            body = _object(await self._http.request("GET", path, params=params))
            boxes += [_box(one) for one in body.get("value") or () if isinstance(one, dict)]
            following = body.get("nextLink")
            if not isinstance(following, str) or not following:
                break
            path, params = following, None
        return sorted(boxes, key=lambda box: box.name)

    async def get(self, name: str) -> DevBox | None:
        """One box; None: there is none of that name."""
        answer = await self._send("GET", self._path(name), accept=(404,))
        return None if answer.status == 404 else _box(_object(answer))

    async def provision(self, name: str | None = None, *, prefix: str = "shraga-box") -> Provisioned:
        """Ask for a new box; for one that is there already that is no error.

        Args:
            name: Its name, so that a repeated request is about the same box; None: the next one that is free.
            prefix: Beginning of such a name.

        Raises:
            NotConfigured: There is no pool.
        """
        if name is not None:
            return await self._put(name)
        taken = {box.name for box in await self.list()}
        for _ in range(_MOST_NAMES):
            chosen = next_name(taken, prefix)
            made = await self._put(chosen)
            if not made.existed:
                return made
            taken.add(chosen)  # somebody else was faster
        raise DataverseError("Others take every name for a new dev box; try again in a moment.")

    async def wait(
        self,
        provisioned: Provisioned,
        *,
        timeout_s: float = _PROVISION_S,
        heard: Callable[[Operation], None] = lambda operation: None,
    ) -> DevBox:
        """Wait until a box can be used.

        Raises:
            DataverseError: It failed; the sentence says why.
            Throttled: It takes longer than ``timeout_s`` and goes on.
        """
        clock = self._http.clock
        deadline = clock.monotonic() + timeout_s
        ended = await wait_for(
            self._http, provisioned.operation, timeout_s=timeout_s, poll_s=self._poll_s, clock=clock, heard=heard
        )
        if ended.status != "Succeeded":
            raise DataverseError(
                f"The dev box {provisioned.name} was not made ({ended.status}: {ended.error or 'no reason given'}); "
                "remove it with `operator-dataverse devbox delete` and try again."
            )
        while True:
            # An operation that was found done may be an older one: what counts is the box.
            box = await self.get(provisioned.name)
            if box is None:
                raise DataverseError(f"The dev box {provisioned.name} is not there any more.")
            if box.failed:
                raise DataverseError(f"The dev box {box.name} is {box.provisioning_state}: {box.error or 'no reason'}.")
            if box.ready:
                return box
            if clock.monotonic() + self._poll_s > deadline:
                raise DataverseError(f"The dev box {box.name} is still {box.provisioning_state}; look again later.")
            heard(Operation("", box.provisioning_state))
            await clock.sleep(self._poll_s)

    async def operation(self, url: str) -> Operation:
        """How an operation stands whose address somebody kept."""
        return await look(self._http, url)

    async def wait_operation(
        self, url: str, *, timeout_s: float = _PROVISION_S, heard: Callable[[Operation], None] = lambda operation: None
    ) -> Operation:
        """Wait for an operation whose address somebody kept."""
        now = await look(self._http, url)
        return await wait_for(
            self._http, now, timeout_s=timeout_s, poll_s=self._poll_s, clock=self._http.clock, heard=heard
        )

    async def delete(self, name: str) -> Operation:
        """Remove a box with everything on it; for one that is not there that is no error."""
        answer = await self._send("DELETE", self._path(name), accept=(404, 409))
        if answer.status == 404:
            return Operation("", "Succeeded")
        if answer.status == 409:
            raise Refused(f"The dev box {name} cannot be removed now ({answer.message}); try again later.", status=409)
        return begun(answer)

    async def connection(self, name: str) -> Connection:
        """Where a box is reached.

        Raises:
            Refused: There is no such box, or it is not ready.
        """
        body = _object(await self._send("GET", self._path(name, "remoteConnection")))
        return Connection(_link(body, "webUrl", "https"), _link(body, "rdpConnectionUrl", "ms-avd", "ms-cloudpc"))

    async def customize(self, name: str, group: Group) -> Customization:
        """Have a group of tasks run on a box; a group that it has already had is not run again."""
        answer = await self._send("PUT", self._path(name, f"customizationGroups/{group.name}"), group.body(), (409,))
        if answer.status == 409:
            found = await self.customization(name, group.name)
            if found is None:
                raise Refused(f"The dev box {name} takes no tasks now ({answer.message}); try again later.", status=409)
            return found
        return _customization(answer.body, group.name)

    async def customization(self, name: str, group: str) -> Customization | None:
        """How far a group of tasks is on a box; None: it was never run there."""
        path = self._path(name, f"customizationGroups/{_named(group, 'group')}")
        answer = await self._send("GET", path, accept=(404,))
        return None if answer.status == 404 else _customization(answer.body, group)

    async def wait_customization(self, name: str, group: str, *, timeout_s: float = _PROVISION_S) -> Customization:
        """Wait until a group of tasks is over on a box, well or not.

        Raises:
            DataverseError: It was never begun, or takes longer than ``timeout_s``.
        """
        clock = self._http.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            found = await self.customization(name, group)
            if found is None:
                raise DataverseError(f"The tasks {group} were never begun on {name}.")
            if found.status not in ("NotStarted", "Running"):
                return found
            if clock.monotonic() + self._poll_s > deadline:
                raise DataverseError(f"The tasks {group} are still {found.status.lower()} on {name}; look again later.")
            await clock.sleep(self._poll_s)

    async def _put(self, name: str) -> Provisioned:
        if not self._pool:
            DataverseSettings(devcenter_pool=self._pool).needs("devcenter_pool")
        answer = await self._send("PUT", self._path(name), {"poolName": self._pool}, (409,))
        if answer.status == 409:
            # After a lost answer, the box is the one that this very call asked for.
            return Provisioned(name, Operation("", "Succeeded"), existed=not answer.uncertain)
        return Provisioned(name, begun(answer))

    async def _send(self, method: str, path: str, body: Any = None, accept: Collection[int] = ()) -> Answer:
        return await self._http.request(method, path, params={"api-version": API_VERSION}, body=body, accept=accept)

    def _path(self, name: str, rest: str = "") -> str:
        path = f"projects/{self._project}/users/{self._user}/devboxes/{_named(name, 'dev box')}"
        return f"{path}/{rest}" if rest else path


def next_name(taken: Collection[str], prefix: str = "shraga-box") -> str:
    """The first free name ``{prefix}-NN``; a gap that a removed box left is filled."""
    used = {name.lower() for name in taken}
    number = 1
    while (name := f"{prefix}-{number:02d}").lower() in used:
        number += 1
    return _named(name, "dev box")


def _named(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(f"{name!r:.80} is no name of a {what}; it has 3 to 63 letters, digits, dots and hyphens.")
    return name


def _object(answer: Answer) -> Mapping[str, Any]:
    if not isinstance(answer.body, dict):
        raise DataverseError("The DevCenter answers with something else than a document; check `devcenter_url`.")
    return answer.body


def _box(body: Mapping[str, Any]) -> DevBox:
    def text(name: str) -> str:
        value = body.get(name)
        return clip(printable(value), 200) if isinstance(value, str) else ""

    return DevBox(
        text("name"),
        text("poolName"),
        text("user"),
        text("provisioningState"),
        text("powerState"),
        text("actionState"),
        failure_of(body),
    )


def _customization(body: Any, name: str) -> Customization:
    body = body if isinstance(body, dict) else {}
    tasks = [task for task in body.get("tasks") or () if isinstance(task, dict)]
    failed = [str(task.get("displayName") or task.get("name")) for task in tasks if task.get("status") == "Failed"]
    return Customization(
        name,
        clip(printable(str(body.get("status") or "NotStarted")), 40),
        tuple((str(task.get("displayName") or task.get("name")), str(task.get("status") or "")) for task in tasks),
        failure_of(body) or (f"failed: {', '.join(failed)}" if failed else ""),
    )


def _link(body: Mapping[str, Any], name: str, *schemes: str) -> str:
    """An address that is shown to people, who click on it."""
    value = body.get(name)
    good = isinstance(value, str) and value.isprintable() and value.partition(":")[0].lower() in schemes
    return value if good and isinstance(value, str) else ""
