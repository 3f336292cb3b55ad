"""The PowerShell files: whole for a parser of that language, and thin: every word they pass on is one that is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
import tree_sitter_powershell as grammar
import typer

from operator_dataverse.cli.app import app
from operator_dataverse.machine.tools import MANAGERS

FOLDER = Path(__file__).parents[2] / "packages" / "operator-dataverse" / "powershell"
COMMON = "common.ps1"
# Which command each of them is (row B-053).
COMMANDS = {
    "setup.ps1": ["setup"],
    "authenticate.ps1": ["authenticate"],
    "verify-devbox-setup.ps1": ["verify"],
    "kiosk-auth-helper.ps1": ["auth-window start", "auth-window stop", "auth-window status"],
}
LINES_AT_MOST = 100


def nodes(text: str) -> Iterator[Any]:
    """All nodes of a script's syntax tree."""
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    waiting = [parser.parse(text.encode()).root_node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def mistakes(text: str) -> list[str]:
    return [f"line {node.start_point[0] + 1}: {node.type}" for node in nodes(text) if node.is_error or node.is_missing]


def texts(text: str, kind: str) -> list[str]:
    return [node.text.decode() for node in nodes(text) if node.type == kind]


def known_options(command: str) -> set[str]:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    return {option for parameter in found.params for option in parameter.opts if option.startswith("--")}


def test_the_four_files_are_there() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {COMMON, *COMMANDS}


@pytest.mark.parametrize("name", [COMMON, *COMMANDS])
def test_each_is_a_whole_script(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    # Windows PowerShell 5.1 reads a file without a mark in the code page of the machine.
    assert data.isascii()
    assert mistakes(data.decode()) == []
    assert len(data.decode().splitlines()) <= LINES_AT_MOST
    strict = name == COMMON or (
        b"Set-StrictMode -Version Latest" in data and b"$ErrorActionPreference = 'Stop'" in data
    )
    assert strict
    # Nothing of 7 that 5.1 cannot read, and nothing that runs text as a program.
    operators = texts(data.decode(), "chain_operator") + re.findall(r"\?\?|&&|\|\|", data.decode())
    assert operators == []
    assert not re.search(
        r"Invoke-Expression|\biex\b|DownloadString|ConvertTo-SecureString", data.decode(), re.IGNORECASE
    )


def test_the_parser_sees_what_is_broken() -> None:
    text = (FOLDER / "authenticate.ps1").read_text()
    assert mistakes(text.replace("$words = @(", "$words = @", 1)) != []
    assert mistakes(text.replace(") { $words", ") $words", 1)) != []


@pytest.mark.parametrize(("name", "commands"), COMMANDS.items())
def test_each_passes_on_only_what_its_command_knows(name: str, commands: list[str]) -> None:
    text = (FOLDER / name).read_text()
    after = text[text.index("$words = @(") :]  # what comes before is for the time before the product is there
    literals = [literal.strip("'") for literal in texts(after, "verbatim_string_characters")]
    options = {literal for literal in literals if re.fullmatch(r"--\w[\w-]*", literal)}
    known = set.union(*(known_options(command) for command in commands))
    assert options <= known
    assert literals[0] == commands[0].split()[0]
    assert "Invoke-OperatorDataverse -Words $words" in after


@pytest.mark.parametrize(("name", "commands"), COMMANDS.items())
def test_each_switch_does_something_and_is_explained(name: str, commands: list[str]) -> None:
    text = (FOLDER / name).read_text()
    block = next(node for node in nodes(text) if node.type == "param_block")
    names = re.findall(r"\] \$(\w+)", block.text.decode())
    assert "Json" in names
    body = text[text.index("Set-StrictMode") :]
    for parameter in names:
        assert f".PARAMETER {parameter}\n" in text
        assert re.search(rf"\${parameter}\b", body)


def test_a_status_is_asked_for_only_with_options_that_it_has() -> None:
    text = (FOLDER / "kiosk-auth-helper.ps1").read_text()
    assert "--dry-run" not in known_options("auth-window status")
    assert "if ($DryRun -and $Action -ne 'Status') { $words += '--dry-run' }" in text
    assert "--browser" not in known_options("auth-window stop")
    assert "if ($Browser -and $Action -eq 'Start') { $words += @('--browser', $Browser) }" in text


def test_the_first_python_comes_the_same_way_as_everything_else() -> None:
    text = (FOLDER / "setup.ps1").read_text()
    words = [literal.strip("'") for literal in texts(text, "verbatim_string_characters")]
    winget = next(manager for manager in MANAGERS if manager.name == "winget")
    assert {"winget", "choco"} <= set(words)
    assert {"--exact", "--silent", "--accept-source-agreements", "--accept-package-agreements"} <= set(words)
    assert {"--exact", "--silent", "--accept-source-agreements", "--accept-package-agreements"} <= set(winget.words)
