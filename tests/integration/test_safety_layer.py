"""The safety layer: upstream's semantics of a shell command, in a sandbox."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import ConfigError
from operator_core.redaction import Redactor
from operator_core.safety import BlockedCommand, SafetyConfig, SafetyLayer
from operator_core.safety.layer import SecurityLog
from operator_core.sandbox import Policy, open_sandbox
from tests.support import processes_of

Make = Callable[..., SafetyLayer]


@pytest.fixture(params=["bubblewrap", "none"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    made: list[SafetyLayer] = []

    def layer(**values: Any) -> SafetyLayer:
        made.append(SafetyLayer(SafetyConfig(tmp_path / "ws", **{"backend": request.param, **values})))
        return made[-1]

    yield layer
    for item in made:
        await item.close()


class TestShell:
    async def test_output_errors_and_codes(self, make: Make) -> None:
        safety = make()
        assert await safety.execute("echo hello") == ("hello\n", "", 0, False)
        assert await safety.execute("echo bad >&2; exit 3") == ("", "bad\n", 3, False)
        assert (await safety.execute("no-such-program")).exit_code == 127
        assert (await safety.execute("true | false")).exit_code == 1

    async def test_every_command_starts_in_the_canonical_workspace(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "ws").symlink_to("real")
        safety = make()
        assert safety.workspace_root() == tmp_path / "real"
        assert (await safety.execute("cd /; pwd")).stdout == "/\n"
        assert (await safety.execute("pwd")).stdout == f"{tmp_path}/real\n"

    async def test_there_is_no_input(self, make: Make) -> None:
        assert await make(shell_timeout_secs=10).execute("cat; echo done") == ("done\n", "", 0, False)

    async def test_a_timeout_has_no_code_and_keeps_what_was_said(self, make: Make) -> None:
        safety = make(shell_timeout_secs=1)
        started = time.monotonic()
        found = await safety.execute("echo begun; echo err >&2; sleep 1000")
        assert found == ("begun\n", "err\n", None, True)
        assert time.monotonic() - started < 8

    async def test_a_timeout_ends_the_whole_group(self, make: Make) -> None:
        safety = make(shell_timeout_secs=1)
        await safety.execute("sleep 77441 & sleep 77441")
        assert processes_of("77441") == []

    async def test_a_signal_has_no_code(self, make: Make) -> None:
        found = await make().execute("kill -9 $$")
        assert (found.exit_code, found.timed_out) == (None, False)

    async def test_defect_70_what_holds_the_output_open_hangs_nothing(self, make: Make) -> None:
        started = time.monotonic()
        found = await make().execute("sleep 77442 & echo started")
        assert (found.stdout, found.exit_code) == ("started\n", 0)
        assert "background process" in found.stderr or processes_of("77442") == []
        assert time.monotonic() - started < 5

    async def test_defect_71_a_wrong_byte_costs_only_itself(self, make: Make) -> None:
        assert (await make().execute(r"printf 'a\377b'")).stdout == "a\N{REPLACEMENT CHARACTER}b"

    async def test_defect_72_characters_are_not_cut(self, make: Make) -> None:
        found = await make().execute("printf '€%.0s' $(seq 50000)")
        assert found.stdout == "€" * 50_000

    async def test_row_c024_everything_arrives(self, make: Make) -> None:
        found = await make().execute("seq 200000")
        assert found.stdout.splitlines() == [str(n) for n in range(1, 200_001)]

    async def test_half_a_million_lines_of_errors_too(self, make: Make) -> None:
        found = await make().execute("seq 100000 >&2")
        assert len(found.stderr.splitlines()) == 100_000


class TestBlocking:
    async def test_the_result_says_why(self, make: Make, tmp_path: Path) -> None:
        safety = make()
        found = await safety.execute("sudo touch made")
        assert (found.stdout, found.exit_code, found.timed_out) == ("", 126, False)
        said = json.loads(found.stderr)
        assert said == {"blocked": True, "reason": said["reason"], "command": "sudo touch made"}
        assert "sudo" in said["reason"]
        assert not (tmp_path / "ws" / "made").exists()

    async def test_nothing_is_started_for_it(self, make: Make) -> None:
        safety = make(backend="no-such-backend")
        assert (await safety.execute("reboot")).exit_code == 126
        with pytest.raises(ConfigError, match="no-such-backend"):
            await safety.execute("true")

    async def test_each_refusal_is_one_line_of_the_log(self, make: Make, tmp_path: Path) -> None:
        safety = make()
        for command in ("sudo one", "echo fine", "reboot\nnow € '"):
            await safety.execute(command)
        log = tmp_path / ".ouro-logs" / "security.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["command"] for line in lines] == ["sudo one", "reboot\nnow € '"]
        assert [sorted(line) for line in lines] == [["blocked", "command", "reason", "timestamp"]] * 2
        assert abs(lines[0]["timestamp"] - time.time()) < 60
        assert log.stat().st_mode & 0o077 == 0

    async def test_defect_82_the_log_is_out_of_reach(self, make: Make, tmp_path: Path) -> None:
        for inside in (tmp_path / "ws" / "security.log", tmp_path / "ws" / "a" / ".." / "b"):
            with pytest.raises(ConfigError, match="in the workspace"):
                make(security_log=inside)
        (tmp_path / "alias").symlink_to(tmp_path / "ws")
        with pytest.raises(ConfigError, match="in the workspace"):
            make(security_log=tmp_path / "alias" / "log")

    async def test_a_log_that_cannot_be_written_blocks_nothing_more(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        safety = make(security_log=tmp_path / "file" / "log")
        assert (await safety.execute("reboot")).exit_code == 126
        assert (await safety.execute("echo on")).stdout == "on\n"

    async def test_secrets_do_not_reach_the_log(self, tmp_path: Path) -> None:
        (tmp_path / "ws").mkdir()
        token = "ghp_" + "a1B2" * 9
        safety = SafetyLayer(SafetyConfig(tmp_path / "ws"), clean=Redactor(["hunter2-hunter2"]).text)
        assert (await safety.execute(f"sudo login {token} hunter2-hunter2 {'x' * 50_000}")).exit_code == 126
        text = safety.log.path.read_text()
        assert token not in text
        assert "hunter2" not in text
        assert len(text) < 12_000

    async def test_a_link_in_place_of_the_log_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "ws").mkdir()
        log = SecurityLog(tmp_path / "log", tmp_path / "ws")
        (tmp_path / "victim").write_text("")
        (tmp_path / "log").symlink_to(tmp_path / "victim")
        log.write(BlockedCommand("x", "y"))
        assert (tmp_path / "victim").read_text() == ""

    async def test_an_own_list_has_the_seeds_semantics(self, make: Make) -> None:
        safety = make(blocked_patterns=[(r"\bcurl\b", "no network")])
        assert (await safety.execute("echo 'no curl here'")).exit_code == 126
        assert (await safety.execute("echo sudo")).exit_code == 0
        with pytest.raises(ConfigError):
            make(blocked_patterns=[("([", "broken")])


@pytest.mark.usefixtures("require_bubblewrap")
class TestTheBoundary:
    async def test_what_the_list_does_not_know_stays_inside(self, tmp_path: Path) -> None:
        (tmp_path / "victim").write_text("untouched")
        async with SafetyLayer(SafetyConfig(tmp_path / "ws")) as safety:
            script = f"import shutil, os; os.remove('{tmp_path}/victim')"
            await safety.execute(f'python3 -c "{script}"; $(printf "\\x72\\x6d") -rf {tmp_path}/victim')
            found = await safety.execute(f"cat {tmp_path}/.ouro-logs/security.log; echo x >{tmp_path}/.ouro-logs/new")
            assert found.exit_code != 0
        assert (tmp_path / "victim").read_text() == "untouched"

    async def test_a_sandbox_of_somebody_else_stays_open(self, tmp_path: Path) -> None:
        (tmp_path / "ws").mkdir()
        sandbox = open_sandbox("bubblewrap", Policy(tmp_path / "ws"), session_dir=tmp_path / "box")
        await sandbox.start()
        async with SafetyLayer(SafetyConfig(tmp_path / "ws"), sandbox) as safety:
            assert (await safety.execute("echo 1")).stdout == "1\n"
        assert (await sandbox.exec("echo 2")).stdout.text() == "2\n"
        await sandbox.close()

    async def test_nothing_is_left_on_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
        monkeypatch.setattr("tempfile.tempdir", None)
        (tmp_path / "t").mkdir()
        async with SafetyLayer(SafetyConfig(tmp_path / "ws")) as safety:
            await safety.execute("seq 100000")
            (folder,) = (tmp_path / "t").iterdir()
            left = sum(path.stat().st_size for path in (folder / "box" / "out").rglob("*") if path.is_file())
            assert left == 0
        assert os.listdir(tmp_path / "t") == []
