"""DevCenter: dev boxes of a project, made, started, customized and removed by long-running operations."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from operator_core.clock import iso, new_id
from operator_dataverse.double.front import body_of, json_object, options_of
from operator_dataverse.double.history import Request as Noted
from operator_dataverse.double.problems import Problem
from operator_dataverse.double.store import Account, ServiceClock

__all__ = ["DevBox", "DevCenter"]

_NAME = re.compile(r"^[a-zA-Z0-9][a-zA-Z0-9-_.]{2,62}$")
_ACTIONS = {"start": ("Starting", "Running"), "stop": ("Stopping", "Deallocated"), "restart": ("Starting", "Running")}
_WEB = "https://devbox.example.com/connect"


@dataclass
class Operation:
    """A long-running operation; it is done when its time has come."""

    id: str
    began: datetime
    ends: datetime
    resource: str
    problem: str = ""


@dataclass
class DevBox:
    """A box, and what is being done to it.

    Attributes:
        name: Of the box.
        pool: Its pool.
        owner: Id of the user.
        state: Provisioning state once its operation ended.
        power: Power state then.
        passing: Provisioning state while its operation runs.
        groups: Customization groups: name -> the tasks of it.
        operations: The running or last operation of the box itself (``""``) and of each group.
    """

    name: str
    pool: str
    owner: str
    created: datetime
    state: str = "Succeeded"
    power: str = "Running"
    passing: str = "Creating"
    groups: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)


class DevCenter:
    """The data plane of one dev center.

    Args:
        clock: Its time; operations end by it.
        takes_s: How long an operation takes.
        projects: Name of each project -> its pools.
    """

    open = False

    def __init__(
        self, clock: ServiceClock, *, takes_s: float = 0.2, projects: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._operations: dict[str, Operation] = {}
        self._failures: list[str] = []
        self.takes_s = takes_s
        self.projects = dict(projects or {"example": ("example-pool",)})
        self.boxes: dict[tuple[str, str, str], DevBox] = {}

    def fail_next(self, message: str = "The subscription has no quota left for this pool.") -> None:
        """The next operation that begins will end as failed."""
        self._failures.append(message)

    def answer(self, request: Request, path: str, account: Account | None, noted: Noted, raw: bytes) -> Response:
        """Answer one request; see :class:`operator_dataverse.double.front.Service`."""
        assert account is not None
        noted.body = body_of(request, raw)
        if "python-requests" in request.headers.get("user-agent", "") or not request.headers.get("user-agent"):
            raise Problem(403, "RequestBlocked", "The request is blocked.")
        if "api-version" not in options_of(request):
            raise _bad("MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required.")
        with self._lock:
            return self._answer(request, [part for part in path.split("/") if part], account, noted.body)

    def _answer(self, request: Request, parts: list[str], account: Account, body: Any) -> Response:
        method = request.method
        root = str(request.url).split("/projects", 1)[0].split("?", 1)[0].rstrip("/")
        if parts == ["projects"] and method == "GET":
            return JSONResponse({"value": [{"name": name} for name in self.projects]})
        if len(parts) < 2 or parts[0] != "projects":
            raise Problem(404, "ResourceNotFound", "There is no such address.")
        project, rest = parts[1], parts[2:]
        if project not in self.projects:
            raise _missing("project", project)
        match rest:
            case [] if method == "GET":
                return JSONResponse({"name": project, "maxDevBoxesPerUser": 10})
            case ["pools"] if method == "GET":
                return JSONResponse({"value": [self._pool(pool) for pool in self.projects[project]]})
            case ["pools", pool] if method == "GET":
                if pool not in self.projects[project]:
                    raise _missing("pool", pool)
                return JSONResponse(self._pool(pool))
            case ["operationstatuses", operation_id] if method == "GET":
                return self._operation(operation_id)
            case ["users", user, "devboxes"] if method == "GET":
                owner = self._user(user, account)
                boxes = [self._shown(*key) for key in sorted(self.boxes) if key[:2] == (project, owner)]
                return JSONResponse({"value": [box for box in boxes if box is not None]})
            case ["users", user, "devboxes", name, *rest]:
                return self._box(method, root, (project, self._user(user, account), name), rest, body)
        raise Problem(404, "ResourceNotFound", "There is no such address.")

    def _box(self, method: str, root: str, key: tuple[str, str, str], rest: list[str], body: Any) -> Response:
        name, _, action = key[2].partition(":")
        key = (key[0], key[1], name)
        if method == "PUT" and not rest:
            return self._create(root, key, json_object(body))
        shown = self._shown(*key)
        if method == "DELETE" and not rest:
            if shown is None:
                return Response(status_code=204)
            box = self.boxes[key]
            box.state, box.passing = "Deleted", "Deleting"
            return self._accepted(root, key[0], self._begin(box, "", key), 202, {})
        if shown is None:
            raise _missing("dev box", name)
        box = self.boxes[key]
        match method, rest:
            case "GET", []:
                return JSONResponse(shown)
            case "POST", [] if action in _ACTIONS:
                box.passing, box.power = _ACTIONS[action]
                return self._accepted(root, key[0], self._begin(box, "", key), 202, {})
            case "GET", ["remoteConnection"]:
                if shown["provisioningState"] != "Succeeded":
                    raise Problem(409, "DevBoxNotReady", f"The dev box '{name}' is {shown['provisioningState']}.")
                link = f"{_WEB}/{name}"
                return JSONResponse({"webUrl": link, "rdpConnectionUrl": f"ms-avd:connect?resourceid={name}"})
            case "GET", ["customizationGroups"]:
                return JSONResponse({"value": [self._group(box, group) for group in box.groups]})
            case "GET", ["customizationGroups", group]:
                if group not in box.groups:
                    raise _missing("customization group", group)
                return JSONResponse(self._group(box, group))
            case "PUT", ["customizationGroups", group]:
                return self._customize(root, key, box, group, json_object(body))
        raise Problem(405, "MethodNotAllowed", "The method is not allowed here.")

    def _create(self, root: str, key: tuple[str, str, str], body: Mapping[str, Any]) -> Response:
        project, owner, name = key
        if not _NAME.match(name):
            raise _bad("InvalidDevBoxName", f"'{name}' is no name of a dev box.")
        pool = body.get("poolName")
        if pool not in self.projects[project]:
            raise _bad("PoolNotFound", f"The pool '{pool}' was not found.")
        if self._shown(*key) is not None:
            raise Problem(409, "DevBoxAlreadyExists", f"A dev box with the name '{name}' already exists.")
        box = DevBox(name, pool, owner, self._clock.now())
        self.boxes[key] = box
        operation = self._begin(box, "", key)
        shown = self._shown(*key)
        assert shown is not None
        return self._accepted(root, project, operation, 201, shown)

    def _customize(
        self, root: str, key: tuple[str, str, str], box: DevBox, group: str, body: Mapping[str, Any]
    ) -> Response:
        if group in box.groups:
            raise Problem(409, "CustomizationGroupAlreadyExists", f"The customization group '{group}' already exists.")
        tasks = body.get("tasks")
        if not isinstance(tasks, list) or not tasks or not all(isinstance(t, dict) and t.get("name") for t in tasks):
            raise _bad("InvalidTasks", "A customization group needs tasks, each with a name.")
        box.groups[group] = tasks
        operation = self._begin(box, group, key)
        return self._accepted(root, key[0], operation, 201, self._group(box, group))

    def _begin(self, box: DevBox, group: str, key: tuple[str, str, str]) -> Operation:
        now = self._clock.now()
        resource = "/".join(["", "projects", key[0], "users", key[1], "devboxes", key[2]])
        problem = self._failures.pop(0) if self._failures else ""
        operation = Operation(str(uuid.UUID(new_id())), now, now + timedelta(seconds=self.takes_s), resource, problem)
        box.operations[group] = self._operations[operation.id] = operation
        if problem and not group:
            box.state = "Failed"
        return operation

    def _accepted(self, root: str, project: str, operation: Operation, status: int, body: Any) -> Response:
        address = f"{root}/projects/{project}/operationstatuses/{operation.id}?api-version=2024-02-01"
        headers = {"Operation-Location": address, "Location": address, "Retry-After": "0"}
        return JSONResponse(body, status, headers=headers) if body else Response(status_code=status, headers=headers)

    def _operation(self, operation_id: str) -> Response:
        operation = self._operations.get(operation_id)
        if operation is None:
            raise _missing("operation", operation_id)
        status = self._status(operation)
        answer: dict[str, Any] = {
            "id": f"/operationstatuses/{operation_id}",
            "name": operation_id,
            "resourceId": operation.resource,
            "status": status,
            "startTime": iso(operation.began),
        }
        if status == "Running":
            return JSONResponse(answer | {"percentComplete": 50.0}, headers={"Retry-After": "0"})
        answer["endTime"] = iso(operation.ends)
        if operation.problem:
            answer["error"] = {"code": "ProvisioningFailed", "message": operation.problem}
        return JSONResponse(answer)

    def _status(self, operation: Operation) -> str:
        if self._clock.now() < operation.ends:
            return "Running"
        return "Failed" if operation.problem else "Succeeded"

    def _shown(self, project: str, owner: str, name: str) -> dict[str, Any] | None:
        box = self.boxes.get((project, owner, name))
        if box is None:
            return None
        running = self._status(box.operations[""]) == "Running"
        if not running and box.state == "Deleted":
            del self.boxes[project, owner, name]
            return None
        shown: dict[str, Any] = {
            "name": box.name,
            "projectName": project,
            "poolName": box.pool,
            "user": owner,
            "provisioningState": box.passing if running else box.state,
            "powerState": "Unknown" if running and box.passing == "Creating" else box.power,
            "actionState": box.passing if running else "Stopped",
            "createdTime": iso(box.created),
            "location": "westeurope",
            "osType": "Windows",
            "uniqueId": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{owner}.{box.name}")),
        }
        if box.state == "Failed" and not running:
            shown["error"] = {"code": "ProvisioningFailed", "message": box.operations[""].problem}
        return shown

    def _group(self, box: DevBox, name: str) -> dict[str, Any]:
        status = self._status(box.operations[name])
        tasks = [{"name": task["name"], "status": status} for task in box.groups[name]]
        return {"name": name, "status": status, "tasks": tasks, "startTime": iso(box.operations[name].began)}

    def _pool(self, name: str) -> dict[str, Any]:
        return {"name": name, "location": "westeurope", "osType": "Windows", "healthStatus": "Healthy"}

    def _user(self, user: str, account: Account) -> str:
        if user == "me":
            return account.user_id
        if user != account.user_id and account.reach != "organization":
            raise Problem(403, "Forbidden", "This account may not look at the dev boxes of somebody else.")
        return user


def _bad(code: str, message: str) -> Problem:
    return Problem(400, code, message)


def _missing(what: str, name: str) -> Problem:
    return Problem(404, "ResourceNotFound", f"The {what} '{name}' was not found.")
