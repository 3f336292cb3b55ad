"""Each script of the seed is a command that explains itself, speaks JSON, and can be asked what it would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from operator_core.errors import ConfigError
from operator_dataverse.cli import main
from operator_dataverse.cli.app import app

# Rows B-041 to B-051, and whether the command changes something.
SCRIPTS = {
    "rows list": False,
    "rows show": False,
    "rows create": True,
    "rows update": True,
    "rows delete": True,
    "devbox status": False,
    "cleanup": True,
    "bot configure": True,
    "schema create": True,
    "relay create": True,
    "users show": False,
    "users set": True,
    "chat send": True,
    "flows list": False,
    "flows validate": False,
    "flows deploy": True,
    "flows export": False,
    "chat relay-test": True,
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its words."""
    found = typer.main.get_command(app) if group is None else group
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = {" ".join(path): command for path, command in commands()}


def options(command: Any) -> set[str]:
    return {word for parameter in command.params for word in parameter.opts}


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert f"Usage: operator-dataverse {name}" in shown.out
    assert shown.err == ""
    assert ALL[name].help
    # Each option says what it is for; what it is called is not enough.
    silent = [p.name for p in ALL[name].params if getattr(p, "help", None) == "" and p.param_type_name == "option"]
    assert silent == []


@pytest.mark.parametrize(("name", "changes"), SCRIPTS.items())
def test_the_scripts_of_the_seed(name: str, changes: bool) -> None:
    assert "--json" in options(ALL[name])
    assert not changes or "--dry-run" in options(ALL[name])


def test_a_wrong_word_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "creat"]) == ConfigError.exit_code
    assert capsys.readouterr().err.startswith("Error: No such command 'creat'")
