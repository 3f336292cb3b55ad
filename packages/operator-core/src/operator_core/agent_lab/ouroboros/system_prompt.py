"""The system prompt of an autonomous agent: ``SYSTEM_PROMPT.md`` of its workspace, wrapped with what surrounds it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from operator_core.errors import ConfigError, SystemPromptNotFound
from operator_core.sandbox.linux.beneath import open_beneath, read_plain

__all__ = ["PROMPT_NAME", "build_system_prompt", "read_system_prompt"]

PROMPT_NAME = "SYSTEM_PROMPT.md"
_LONGEST = 256 * 1024

_HARNESS = """\
You are an autonomous AI agent running in the Ouroboros research harness.

## Environment
- Model: {model}
- Workspace: {workspace} (you own this directory)
- Shell commands execute in the workspace directory

## Available Tools
{tool_descriptions}

## Constraints
- File writes are restricted to the workspace directory
- Shell commands are filtered against a security blocklist
- Shell commands have a configurable timeout
- Read access is unrestricted

## Your System Prompt
The following is your system prompt, provided by your operator:

---

"""


async def build_system_prompt(workspace: Path | str, model: str, tool_descriptions: str) -> str:
    """The whole system prompt (rows C-002 to C-007): the harness first, then the content of ``SYSTEM_PROMPT.md``.

    Args:
        workspace: The agent's directory, as its commands see it.
        model: Id of the model.
        tool_descriptions: A text for people, e.g. of
            :func:`operator_core.agent_lab.ouroboros.tools.tool_descriptions`; it stands in the prompt as it is.

    Raises:
        SystemPromptNotFound: There is no such file.
        ConfigError: It is no plain file of the workspace, not readable, or longer than 256 KiB.
    """
    content = read_system_prompt(workspace)
    harness = _HARNESS.format(model=model, workspace=workspace, tool_descriptions=tool_descriptions)
    return harness + content


def read_system_prompt(workspace: Path | str) -> str:
    """The operator's own part: ``SYSTEM_PROMPT.md``, as it is now.

    The agent owns the workspace and may have put anything there. This runs outside of its sandbox, so that a link to
    the outside must not be followed here: the file would end up in the model's context.

    Raises:
        SystemPromptNotFound: There is no such file.
        ConfigError: It is no plain file of the workspace, not readable, or longer than 256 KiB.
    """
    path = Path(workspace, PROMPT_NAME)
    try:
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_beneath(root, PROMPT_NAME, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(root)
        try:
            data, size = read_plain(fd, 0, _LONGEST)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise SystemPromptNotFound(path) from None
    except OSError as error:
        outside = error.errno in (errno.EXDEV, errno.ELOOP)
        why = "it is a link that leads out of the workspace" if outside else error.strerror
        raise ConfigError(f"The system prompt `{path}` cannot be read ({why}); put a plain text file there.") from None
    if size > _LONGEST:
        raise ConfigError(f"The system prompt `{path}` has {size} bytes; shorten it to {_LONGEST}.")
    # The agent may rewrite it, and one wrong byte must not end it for good.
    return data.decode("utf-8", "replace")
