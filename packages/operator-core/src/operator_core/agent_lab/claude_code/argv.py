"""The command line and the environment of the CLI (rows B-016, B-065, B-066)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operator_core.config import ClaudeCodeSettings

__all__ = ["FOREIGN", "cli_argv", "cli_environment"]

FOREIGN = ("CLAUDE", "ANTHROPIC_", "AI_AGENT", "IS_SANDBOX")
"""Variables that begin so never reach the CLI from outside, ``CLAUDECODE`` among them: it would take itself for a
nested session, or talk to somebody else's account."""


def cli_argv(
    program: Path,
    *,
    session: str,
    resume: bool,
    model: str,
    system_file: Path | None = None,
    schema: Mapping[str, Any] | None = None,
    untrusted: bool = False,
) -> list[str]:
    """The words of the command; the prompt comes on standard input.

    Args:
        program: See :func:`operator_core.agent_lab.claude_code.program.find_program`.
        session: The CLI's session id (a UUID), chosen by us and journaled before the start.
        resume: Whether that session has begun.
        model: Model id.
        system_file: File with text to add to the CLI's own system prompt, as seen in the sandbox.
        schema: JSON Schema of the answer.
        untrusted: Whether the workspace is somebody else's work: then its instructions to agents (``CLAUDE.md``,
            hooks, skills, settings) are not loaded.
    """
    words = [str(program), "-p", "--input-format", "stream-json", "--output-format", "stream-json"]
    words += ["--verbose", "--include-partial-messages", "--dangerously-skip-permissions"]
    words += ["--resume" if resume else "--session-id", session, "--model", model]
    # Nobody who runs a task has asked for a repository's tool servers; and there is no network for the web.
    words += ["--strict-mcp-config", "--disallowedTools", "WebFetch,WebSearch"]
    if untrusted:
        words += ["--safe-mode"]
    if system_file is not None:
        words += ["--append-system-prompt-file", str(system_file)]
    if schema is not None:
        words += ["--json-schema", json.dumps(schema, ensure_ascii=False, separators=(",", ":"))]
    return words


def cli_environment(
    settings: ClaudeCodeSettings, *, config_dir: Path, token: str, max_output_tokens: int
) -> dict[str, str]:
    """The variables that the CLI needs on top of the sandbox's small clean environment (``PATH``, ``HOME``, ...).

    The address (``ANTHROPIC_BASE_URL``) is added by the forwarder, which alone knows its port.

    Args:
        settings: ``[claude_code]``.
        config_dir: Where the CLI keeps this session's transcript.
        token: What our proxy accepts; of no use to anybody else, and never the API key.
        max_output_tokens: Longest answer; what is reserved in the budget for each call.
    """
    return {
        "ANTHROPIC_API_KEY": token,
        "CLAUDE_CONFIG_DIR": str(config_dir),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": str(settings.max_retries),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_output_tokens),
        # It would wait for them at its end, however long they take; a command may still start its own.
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
