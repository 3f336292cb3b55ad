"""What is put on a new dev box: groups of tasks that the DevCenter runs on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from operator_dataverse.errors import Refused

__all__ = ["Group", "Step", "deploy_group", "group_from", "tools_group"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{2,62}$"
_MOST_BYTES = 200_000


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Step(_Strict):
    """One task of a group.

    Attributes:
        name: Task of the DevCenter's catalog, e.g. ``winget`` or ``powershell``.
        parameters: What it takes.
        display_name: For people.
        run_as: Account on the box.
        timeout_s: Its limit in seconds; None: the DevCenter's own.
    """

    name: str = Field(min_length=1, max_length=200)
    parameters: dict[str, str] = {}
    display_name: Annotated[str, Field(alias="displayName", max_length=200)] = ""
    run_as: Annotated[Literal["System", "User"], Field(alias="runAs")] = "System"
    timeout_s: Annotated[int | None, Field(alias="timeoutInSeconds", ge=1)] = None


class Group(_Strict):
    """Tasks that are run on a box once, in order, under a name.

    Attributes:
        name: A group of that name is run on a box at most once.
        tasks: What is run.
    """

    name: str = Field(pattern=_NAME)
    tasks: tuple[Step, ...] = Field(min_length=1)

    def body(self) -> dict[str, object]:
        """The document of the DevCenter."""
        return {"tasks": [step.model_dump(by_alias=True, exclude_none=True) for step in self.tasks]}


def tools_group() -> Group:
    """Git, the agent's command line and Python, from the package managers of Windows (requirements 2.2.11)."""

    def winget(package: str) -> Step:
        return Step(name="winget", parameters={"package": package}, display_name=package)

    python = Step(name="choco", parameters={"package": "python312"}, display_name="Python")
    return Group(name="shraga-tools", tasks=(winget("Git.Git"), winget("Anthropic.ClaudeCode"), python))


def deploy_group(source: str) -> Group:
    """The product itself, and the service that starts its worker when the person signs in, and again when it ends.

    It is a service of the person and not of the system: the worker acts with the person's sign-ins, which nobody else
    on the box can use.

    Args:
        source: Address of the archive or wheel that ``pip`` installs; ``https`` only.

    Raises:
        Refused: It is no such address.
    """
    try:
        parts = urlsplit(source)
        whole = parts.scheme == "https" and bool(parts.hostname)
    except ValueError:
        parts, whole = urlsplit(""), False
    if not whole or not source.isascii() or not source.isprintable():
        raise Refused(f"{source!r:.100} is no https address; give the archive that is to be installed.")
    if parts.username or parts.password:
        raise Refused("The address holds a password, which everybody on the box could read; give one without.")
    if any(c in source for c in " \"'`$;<>|"):
        raise Refused("The address has characters that a command line would act on; give it percent-encoded.")
    return Group(
        name="shraga-deploy",
        tasks=(
            Step(
                name="powershell",
                parameters={"command": f"python -m pip install --upgrade '{source}'"},
                display_name="Install the product",
            ),
            Step(
                name="powershell",
                parameters={"command": 'python -m operator_dataverse service --install --folder "$env:USERPROFILE"'},
                display_name="Start the worker with the person's session",
                run_as="User",
            ),
        ),
    )


def group_from(file: Path) -> Group:
    """A group out of a JSON file: ``{"name": …, "tasks": [{"name": …, "parameters": {…}}]}``.

    Raises:
        Refused: The file is none, or is not like that.
    """
    try:
        data = file.read_bytes()
        if len(data) > _MOST_BYTES:
            raise Refused(f"{file} has more than {_MOST_BYTES} bytes; that is no group of tasks.")
        return Group.model_validate(json.loads(data))
    except OSError as error:
        raise Refused(f"{file} cannot be read ({error.strerror}); name a JSON file.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise Refused(f"{file} is no group of tasks: {where}: {first['msg'].lower()}.") from None
    except ValueError:
        raise Refused(f"{file} is no JSON; write a name and a list of tasks.") from None
