"""The file and job tools of an agent, through the gateway: what the model is told, and what the journal says."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operator_core.agent_lab.gateway import ToolGateway, ToolOutput, ToolRefused
from operator_core.agent_lab.history import Conversation
from operator_core.agent_lab.profiles import OPERATOR, WORKER
from operator_core.agent_lab.toolbox.files import FILE_EDIT, FILE_READ, FILE_WRITE
from operator_core.agent_lab.toolbox.jobs import job_tools
from operator_core.agent_lab.toolbox.shell import SHELL, shell_exec_tool
from operator_core.agent_lab.toolbox.tool import Tool
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import TicketStatus
from operator_core.redaction import MASK, Redactor
from operator_core.safety import SafetyConfig, SafetyLayer
from operator_core.sandbox import Policy, open_sandbox
from operator_core.scripted import Call, Reply, Turn
from tests.support import processes_of
from tests.support.rig import open_rig
from tests.support.task_brain import done, task_brain

SECRET = "hunter2-hunter2-hunter2"
JOB_START, JOB_STATUS, JOB_OUTPUT, JOB_KILL = job_tools()


class Bench:
    """A gateway with a real journal and a real sandbox, and calls numbered as a model would."""

    def __init__(self, gateway: ToolGateway, workspace: Path) -> None:
        self.gateway, self.workspace = gateway, workspace
        self._calls = 0

    async def text(self, tool: Tool, **arguments: Any) -> str:
        self._calls += 1
        name = tool.schema.name
        block = {"type": "tool_use", "id": f"toolu_{self._calls}", "name": name, "input": arguments}
        await self.gateway.record(
            Draft(EntryKind.MESSAGE, "reply", body={"role": "assistant", "content": [block]}),
            self.gateway.intent(block),
        )
        try:
            return await tool.run(self.gateway, str(block["id"]), arguments)
        except ToolRefused as error:
            refused = {"type": "tool_result", "tool_use_id": block["id"], "content": str(error), "is_error": True}
            await self.gateway.answer(refused)
            raise

    async def data(self, tool: Tool, **arguments: Any) -> dict[str, Any]:
        value = json.loads(await self.text(tool, **arguments))
        assert isinstance(value, dict)
        return value

    async def refused(self, tool: Tool, **arguments: Any) -> str:
        with pytest.raises(ToolRefused) as caught:
            await self.text(tool, **arguments)
        return str(caught.value)

    async def results(self) -> list[Any]:
        entries = await self.gateway.journal.audit.entries(self.gateway.journal.session_id)
        return [entry for entry in entries if entry.entry_type == EntryKind.TOOL_RESULT]


@pytest.fixture(params=["bubblewrap", "none"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    workspace = tmp_path / "ws"
    workspace.mkdir()
    redactor = Redactor([SECRET])
    async with Database.open(tmp_path / "operator.db", redactor=redactor) as database:
        audit = AuditLogDB(database)
        journal = await audit.journal(await audit.create_session(None))
        journal.phase = "worker_1"
        sandbox = open_sandbox(
            request.param, Policy(workspace), session_dir=tmp_path / "box", redact=database.redactor.filter
        )
        await sandbox.start()
        gateway = ToolGateway(
            journal, sandbox, calls=tmp_path / "calls", place="here", conversation=Conversation(), timeout_s=30
        )
        yield Bench(gateway, workspace)
        await sandbox.close()


def test_which_agents_have_them() -> None:
    assert OPERATOR.tools == ("shell", "propose_resolution", "give_up")
    assert WORKER.tools == (
        "shell", "file_read", "file_write", "file_edit", "job_start", "job_status", "job_output", "job_kill",
        "report_done", "report_blocked",
    )  # fmt: skip


class TestFileRead:
    async def test_a_short_file_is_its_text(self, bench: Bench) -> None:
        for text in ("", "one", "one\n", "one\n\n", "é€\n\ttab", "a\r\nb\r\n", "\n", '{"error": "x"}'):
            (bench.workspace / "f").write_bytes(text.encode())
            assert await bench.text(FILE_READ, path="f") == text

    async def test_parts_of_a_long_file_make_the_whole(self, bench: Bench) -> None:
        lines = [f"{n}: " + "x" * (n % 300) for n in range(1, 5001)]
        (bench.workspace / "f").write_text("\n".join(lines) + "\n")
        got: list[str] = []
        offset = 1
        for _ in range(100):
            text = await bench.text(FILE_READ, path="f", offset=offset)
            assert len(text) < 50_000
            *part, note = text.split("\n")
            if "go on with offset=" not in note:
                got += [*part, note]
                break
            assert note == f"[lines {offset}-{offset + len(part) - 1} of 5000; go on with offset={offset + len(part)}]"
            got += part
            offset += len(part)
        assert got == [*lines, ""]

    async def test_offset_and_limit(self, bench: Bench) -> None:
        (bench.workspace / "f").write_text("a\nb\nc\nd")
        assert await bench.text(FILE_READ, path="f", offset=2, limit=2) == "b\nc\n[lines 2-3 of 4; go on with offset=4]"
        assert await bench.text(FILE_READ, path="f", offset=4) == "d"
        assert "4 lines" in await bench.refused(FILE_READ, path="f", offset=5)
        for bad in (
            {"offset": 0},
            {"limit": 0},
            {"offset": "1"},
            {"offset": 1.5},
            {"limit": True},
            {"offset": float("nan")},
            {"offset": float("inf")},
            {"limit": 10**30},
        ):
            await bench.refused(FILE_READ, path="f", **bad)
        assert "offset and limit" in await bench.refused(FILE_READ, path="f", lines=3)

    async def test_one_endless_line(self, bench: Bench) -> None:
        (bench.workspace / "f").write_text("short\n" + "€" * 100_000 + "\nend")
        assert (await bench.text(FILE_READ, path="f")).startswith("short\n[lines 1-1 of 3")
        text = await bench.text(FILE_READ, path="f", offset=2)
        assert text.startswith("€" * 48_000 + "\n[line 2 of 3 has 100000 characters")

    async def test_what_cannot_be_read_says_why(self, bench: Bench) -> None:
        (bench.workspace / "binary").write_bytes(b"\x7fELF\0")
        (bench.workspace / "big").write_bytes(b"")
        os.truncate(bench.workspace / "big", 20 << 20)
        os.mkfifo(bench.workspace / "fifo")
        assert "binary file" in await bench.refused(FILE_READ, path="binary")
        assert "20971520 bytes" in await bench.refused(FILE_READ, path="big")
        for path in ("nope", ".", "fifo", "a\0b", "\ud800", ""):
            await bench.refused(FILE_READ, path=path)
        await bench.refused(FILE_READ, path=7)
        await bench.refused(FILE_READ)

    async def test_secrets_are_taken_out_before_the_model_sees_them(self, bench: Bench) -> None:
        (bench.workspace / "f").write_text(f"password = {SECRET}\nkey\n")
        assert await bench.text(FILE_READ, path="f") == f"password = {MASK}\nkey\n"
        assert SECRET not in str(await bench.results())

    async def test_it_starts_where_the_shell_is(self, bench: Bench) -> None:
        await bench.data(SHELL, command="mkdir d; cd d; echo here >f", reasoning="r")
        assert await bench.text(FILE_READ, path="f") == "here\n"


class TestFileWrite:
    async def test_bytes_are_counted(self, bench: Bench) -> None:
        assert await bench.data(FILE_WRITE, path="a/b/f", content="hé\0") == {"written_bytes": 4, "path": "a/b/f"}
        assert (bench.workspace / "a/b/f").read_bytes() == "hé\0".encode()
        assert (await bench.data(SHELL, command="wc -c <a/b/f", reasoning="r"))["stdout"].strip() == "4"

    async def test_outside_and_protected(self, bench: Bench, tmp_path: Path) -> None:
        (bench.workspace / "link").symlink_to("/usr/new")
        for path in ("/usr/new", "/etc/passwd", "link", ".git/hooks/pre-commit"):
            await bench.refused(FILE_WRITE, path=path, content="x")
        for bad in ({"content": 1}, {}, {"content": "\ud800"}, {"content": "x", "mode": 7}):
            await bench.refused(FILE_WRITE, path="f", **bad)
        assert os.listdir(bench.workspace) == ["link"]

    async def test_the_mask_is_not_written_over_a_secret(self, bench: Bench) -> None:
        file = bench.workspace / ".env"
        file.write_text(f"KEY={SECRET}\nMODE=1\n")
        shown = await bench.text(FILE_READ, path=".env")
        assert "destroy the secret" in await bench.refused(FILE_WRITE, path=".env", content=shown.replace("1", "2"))
        assert "secret" in await bench.refused(FILE_EDIT, path=".env", old=f"KEY={MASK}\nMODE=1", new="MODE=2")
        await bench.data(FILE_EDIT, path=".env", old="MODE=1", new="MODE=2")
        assert file.read_text() == f"KEY={SECRET}\nMODE=2\n"
        await bench.data(FILE_WRITE, path="docs", content=f"a secret is shown as {MASK}")
        await bench.data(FILE_WRITE, path="docs", content=f"always shown as {MASK}")


class TestFileEdit:
    async def test_one_exact_piece(self, bench: Bench) -> None:
        file = bench.workspace / "f.py"
        file.write_bytes(b"def f():\r\n\treturn 1\r\n\xff")
        file.chmod(0o755)
        assert await bench.data(FILE_EDIT, path="f.py", old="\treturn 1", new="\treturn 'é'") == {
            "path": "f.py",
            "line": 2,
        }
        assert file.read_bytes() == "def f():\r\n\treturn 'é'\r\n".encode() + b"\xff"
        assert file.stat().st_mode & 0o777 == 0o755
        await bench.data(FILE_EDIT, path="f.py", old="def f():\r\n", new="")
        assert file.read_bytes().startswith(b"\treturn")

    async def test_refusals_help(self, bench: Bench) -> None:
        before = "x = 1\nif a:\n    y = 2\n    y = 2\nz = [aa]\n"
        (bench.workspace / "f").write_text(before)
        assert "occurs 2 times in f (lines 3, 4)" in await bench.refused(FILE_EDIT, path="f", old="    y = 2", new="")
        assert "line 2 that differs in blanks" in await bench.refused(FILE_EDIT, path="f", old="if a:\n\ty = 2", new="")
        assert "first line is at line 1" in await bench.refused(FILE_EDIT, path="f", old="x = 1\nnot there", new="")
        assert "read the file" in await bench.refused(FILE_EDIT, path="f", old="nowhere", new="")
        assert "empty" in await bench.refused(FILE_EDIT, path="f", old="", new="x")
        assert "same" in await bench.refused(FILE_EDIT, path="f", old="x", new="x")
        assert "No such file" in await bench.refused(FILE_EDIT, path="g", old="x", new="y")
        (bench.workspace / "dos").write_bytes(b"a\r\nb\r\n")
        assert "CR LF" in await bench.refused(FILE_EDIT, path="dos", old="a\nb", new="c")
        assert (bench.workspace / "f").read_text() == before

    async def test_overlapping_places_are_two(self, bench: Bench) -> None:
        (bench.workspace / "f").write_text("aaa")
        assert "2 times" in await bench.refused(FILE_EDIT, path="f", old="aa", new="b")
        (bench.workspace / "f").write_text("a" * 100_000)
        assert "often" in await bench.refused(FILE_EDIT, path="f", old="a", new="b")


class TestJobs:
    async def test_a_life(self, bench: Bench) -> None:
        command = "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo over; exit 3"
        job = await bench.data(JOB_START, command=command)
        assert (job["running"], job["exit_code"]) == (True, None)
        name = job["job"]
        first = await bench.data(JOB_OUTPUT, job=name)
        assert (first["output"], first["next_offset"], first["running"]) == ("begun\n", 6, True)
        await bench.data(FILE_WRITE, path="go", content="")
        ended = await bench.data(JOB_STATUS, job=name, wait=20)
        assert (ended["running"], ended["exit_code"], ended["reason"]) == (False, 3, "exited")
        rest = await bench.data(JOB_OUTPUT, job=name, offset=first["next_offset"])
        assert rest["output"] == "over\n"
        assert (await bench.data(JOB_OUTPUT, job=name, offset=-5))["output"] == "over\n"
        listed = await bench.data(JOB_STATUS)
        assert [j["job"] for j in listed["jobs"]] == [name]

    async def test_a_kill_takes_everything(self, bench: Bench) -> None:
        job = await bench.data(JOB_START, command="sleep 66551 & sleep 66551")
        killed = await bench.data(JOB_KILL, job=job["job"])
        assert (killed["running"], killed["reason"]) == (False, "cancelled")
        assert processes_of("66551") == []
        assert (await bench.data(JOB_KILL, job=job["job"]))["running"] is False

    async def test_a_job_that_fails_at_once_says_so(self, bench: Bench) -> None:
        job = await bench.data(JOB_START, command="echo broken >&2; exit 7")
        assert (job["running"], job["exit_code"]) == (False, 7)

    async def test_characters_are_not_cut_between_two_parts(self, bench: Bench) -> None:
        job = await bench.data(JOB_START, command="printf 'a€€€'; printf '\\xff'")
        await bench.data(JOB_STATUS, job=job["job"], wait=20)
        text, offset = "", 0
        for _ in range(20):
            part = await bench.data(JOB_OUTPUT, job=job["job"], offset=offset, limit=4)
            text, offset = text + part["output"], part["next_offset"]
            if not part["output"]:
                break
        assert text == "a€€€\N{REPLACEMENT CHARACTER}"

    async def test_secrets_and_names(self, bench: Bench) -> None:
        one, two = [await bench.data(JOB_START, command=f"echo {SECRET}") for _ in range(2)]
        assert one["job"] != two["job"]
        await bench.data(JOB_STATUS, job=one["job"], wait=20)
        assert (await bench.data(JOB_OUTPUT, job=one["job"]))["output"] == f"{MASK}\n"
        assert one["job"] in await bench.refused(JOB_STATUS, job="job-0")
        for bad in ({}, {"job": 1}, {"job": one["job"], "offset": "x"}, {"job": one["job"], "limit": 0}):
            await bench.refused(JOB_OUTPUT, **bad)
        await bench.refused(JOB_START, command="a\0b")
        await bench.refused(JOB_STATUS, wait=-1)

    async def test_too_many(self, bench: Bench) -> None:
        for _ in range(8):
            await bench.data(JOB_START, command="sleep 66552")
        assert "limit" in await bench.refused(JOB_START, command="sleep 66552")


class TestShellExec:
    async def test_the_contract(self, bench: Bench, tmp_path: Path) -> None:
        safety = SafetyLayer(
            SafetyConfig(bench.workspace, shell_timeout_secs=2, security_log=tmp_path / "security.log")
        )
        tool = shell_exec_tool(safety)
        assert await bench.data(tool, command="echo hello") == {
            "stdout": "hello\n", "stderr": "", "exit_code": 0, "timed_out": False,
        }  # fmt: skip
        await bench.data(tool, command="mkdir d; cd d")
        assert (await bench.data(tool, command="pwd"))["stdout"] == f"{bench.workspace}\n"
        late = await bench.data(tool, command="echo begun; sleep 100")
        assert late == {"stdout": "begun\n", "stderr": "", "exit_code": None, "timed_out": True}
        assert (await bench.data(tool, command="kill -9 $$"))["exit_code"] is None
        blocked = await bench.data(tool, command="sudo touch made")
        assert blocked["exit_code"] == 126
        assert json.loads(blocked["stderr"])["command"] == "sudo touch made"
        assert json.loads((tmp_path / "security.log").read_text())["command"] == "sudo touch made"
        long = await bench.data(tool, command="seq 100000")
        assert len(long["stdout"]) < 40_000
        assert "omitted" in long["stdout"]
        assert "command and" not in await bench.refused(tool, command="x", reasoning="y")
        codes = [entry.exit_code for entry in await bench.results()]
        assert codes == [0, 0, 0, None, None, 126, 0, None]

    async def test_jobs_are_judged_too(self, bench: Bench, tmp_path: Path) -> None:
        safety = SafetyLayer(SafetyConfig(bench.workspace, security_log=tmp_path / "security.log"))
        answer = await bench.data(job_tools(safety)[0], command="reboot")
        assert answer["exit_code"] == 126
        assert (await bench.data(JOB_STATUS))["jobs"] == []


class TestJournal:
    async def test_what_the_model_is_told_is_what_is_written(self, bench: Bench) -> None:
        told = [
            await bench.text(FILE_WRITE, path="f", content="one\ntwo\n"),
            await bench.text(FILE_READ, path="f"),
            await bench.text(FILE_EDIT, path="f", old="two", new="2"),
        ]
        results = await bench.results()
        assert [entry.body["content"] for entry in results] == told
        assert [entry.tool_name for entry in results] == ["file_write", "file_read", "file_edit"]
        assert [entry.content for entry in results] == [
            "8 bytes written to f", "f: lines 1-2 of 2", "f changed at line 2",
        ]  # fmt: skip
        assert {(entry.exit_code, entry.meta["status"]) for entry in results} == {(0, "ok")}

    async def test_nothing_is_done_twice(self, bench: Bench) -> None:
        runs = 0

        async def work(started: Any, spool: Path) -> ToolOutput:
            nonlocal runs
            runs += 1
            return ToolOutput({"n": runs}, {"n": runs}, "done")

        await bench.gateway.once("toolu_x", "file_write", work)
        with pytest.raises(ToolRefused, match="outcome unknown"):
            await bench.gateway.once("toolu_x", "file_write", work)
        assert runs == 1

    @pytest.mark.parametrize("moment", ["before", "between", "after"])
    async def test_a_crash_is_answered_with_what_is_known(self, bench: Bench, moment: str) -> None:
        class Dying(Exception):
            pass

        class Fragile(ToolGateway):
            async def _finish(self, *arguments: Any) -> str:
                raise Dying

        gateway = bench.gateway
        block = {
            "type": "tool_use", "id": "toolu_1", "name": "file_write", "input": {"path": "f", "content": "once"},
        }  # fmt: skip
        await gateway.record(
            Draft(EntryKind.MESSAGE, "reply", body={"role": "assistant", "content": [block]}), gateway.intent(block)
        )
        if moment != "before":
            gateway.__class__ = Fragile
            if moment == "between":

                async def killed(path: str, data: bytes) -> None:
                    raise Dying

                gateway.sandbox.write_file = killed  # type: ignore[method-assign]
            with pytest.raises(Dying):
                await FILE_WRITE.run(gateway, "toolu_1", {"path": "f", "content": "once"})
            gateway.__class__ = ToolGateway
        await gateway.recover()
        (result,) = await bench.results()
        expected = {"before": "not_executed", "between": "unknown", "after": "ok"}[moment]
        assert (result.meta or {})["status"] == expected
        assert (bench.workspace / "f").exists() == (moment == "after")
        if moment == "after":
            assert json.loads(result.body["content"]) == {"written_bytes": 4, "path": "f"}
            assert result.content == "4 bytes written to f"
        assert gateway.conversation.open_calls == []


async def test_a_worker_uses_them_in_a_task(tmp_path: Path, require_bubblewrap: None) -> None:
    """The whole way: the SDK's runner, the gateway, a real sandbox, and a server that the next command asks."""
    seen: dict[str, Any] = {}

    def worker(turn: Turn) -> Reply:
        steps = [
            Call("file_write", {"path": "hello", "content": "echo hallo\n"}),
            Call("file_edit", {"path": "hello", "old": "hallo", "new": "hello"}),
            Call("file_edit", {"path": "hello", "old": "nowhere", "new": "x"}),
            Call("file_read", {"path": "hello"}),
            Call("job_start", {"command": "echo ready; sleep 66553"}),
            Call("file_reed", {"path": "hello"}),
        ]
        if turn.step < len(steps):
            return Reply(calls=(steps[turn.step],))
        seen.update({f"{n}-{r.name}": (r.text, r.is_error) for n, r in enumerate(turn.history())})
        return done()

    async with open_rig(task_brain(worker), tmp_path, tasks={"root": tmp_path}, sandbox={"backend": "auto"}) as rig:
        await rig.tickets.submit_task(TaskSpec(name="hello", prompt="Make hello."))
        await rig.work()
        ticket = await rig.tickets.get_ticket(1)
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        assert "files (file_read)" in json.dumps(rig.sent())
    assert seen["3-file_read"] == ("echo hello\n", False)
    assert seen["2-file_edit"][1] is True
    assert json.loads(seen["4-job_start"][0])["running"] is True
    assert seen["5-file_reed"][1] is True
    assert processes_of("66553") == []
