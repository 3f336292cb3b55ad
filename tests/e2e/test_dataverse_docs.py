"""``docs/dataverse.md`` is tried: its examples run on the double, its tables are what the code has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from operator_dataverse.cli.app import app
from operator_dataverse.double import Double
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.schema import load_schemas
from operator_dataverse.tables.task import TaskCode

PAGE = Path(__file__).parents[2] / "docs" / "dataverse.md"
TEXT = PAGE.read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run_from_an_organisation_without_tables(tmp_path: Path) -> None:
    scripts = blocks("sh")
    assert "\n".join(scripts).count("operator-dataverse") > 15
    said = ""
    with Double(tables=[]) as double:
        alice = double.add_account("alice@example.com", reach="own")
        env = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "DATAVERSE_URL": double.url,
            "WEBHOOK_USER": "alice@example.com",
            "TEAMS_WEBHOOK_URL": double.webhook_url,
        }
        for script in scripts:
            # Each with the role that the page gives to whoever does it.
            whole = "schema create" in script or "fleet run" in script
            env["DATAVERSE_TOKEN"] = double.token if whole else alice.token
            command = ["bash", "-euxo", "pipefail", "-c", script]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{double.history.text()}"
            said += done.stdout
        assert not double.history.unconditional()
        [task] = double.tables["cr_shraga_tasks"].where(cr_name="Say hello")
        assert double.history.values("cr_shraga_tasks", task["cr_shraga_taskid"], "cr_status") == [1, 9, 1]
        assert len(double.cards) == 1
        assert task["_ownerid_value"] == alice.user_id
    assert "Error" not in said


def test_every_command_that_is_named_exists() -> None:
    lines = [line for block in [*blocks("sh"), *blocks("console")] for line in block.splitlines()]
    named = set(re.findall(r"operator-dataverse ([a-z-]+(?: [a-z-]+)?)", "\n".join(lines)))
    # In the text, in quotes: `fleet run`, `operator-dataverse double`.
    groups = set(getattr(get_command(app), "commands", {}))
    for words in re.findall(r"`(?:operator-dataverse )?([a-z]+(?: [a-z-]+){0,2})[^`]*`", TEXT):
        if words.split()[0] in groups and " " in words:
            named.add(words)
    assert len(named) > 20

    for words in sorted(named):
        command = get_command(app)
        for word in words.split():
            found = getattr(command, "commands", {})
            assert not found or word in found, f"there is no command `{words}`"
            command = found.get(word, command)


def test_the_settings_are_all_there() -> None:
    lines = re.findall(r"^\| `(\w+)` \| (.*?) \| `?(\w*)`? ?\|$", TEXT, re.M)
    shown = {name: (default, variable) for name, default, variable in lines}
    variables = {name: variable for variable, name in DataverseSettings.ENVIRONMENT.items()}
    for name, field in DataverseSettings.model_fields.items():
        if field.default_factory is not None:
            default = "the host's name"
        else:
            default = "(not set)" if field.default is None else f"`{json.dumps(field.default)}`"
        assert shown.get(name) == (default, variables.get(name, "")), f"[dataverse] {name} in {PAGE.name}"


def test_codes_and_columns_are_the_ones_of_the_tables() -> None:
    codes = dict(re.findall(r"^\| (\d) ([A-Z][A-Za-z ]+?) \|", TEXT, re.M))
    options = load_schemas()["cr_shraga_tasks"].by_name["cr_status"].options
    assert codes == {str(code): label for code, label in options.items()}
    assert set(options) == {int(code) for code in TaskCode}
    known = {column.name for table in load_schemas().values() for column in table.columns} | set(load_schemas())
    named = set(re.findall(r"`((?:cr|crb3b)_\w+)`", TEXT))
    assert len(named) > 12
    assert named <= known
