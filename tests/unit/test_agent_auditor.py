"""``SessionAuditor``: rows A-022 to A-030, and the defect D-15."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from anthropic.types import TextBlock, ToolUseBlock

from operator_core.agent_lab import SessionAuditor
from tests.support.processes import operator_environment

ID = re.compile(r"^\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-[0-9a-f]{8}$")


def test_ids_are_unique_and_begin_with_the_time(tmp_path: Path) -> None:
    """Rows A-022 to A-024."""
    ids = [SessionAuditor(tmp_path / "not" / "yet").session_id for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(ID.match(i) for i in ids)
    assert (tmp_path / "not" / "yet").is_dir()


def test_the_file(tmp_path: Path) -> None:
    """Rows A-025 to A-028."""
    auditor = SessionAuditor(tmp_path)
    auditor.log_message("user", "Check it.")
    auditor.log_tool_call("shell", {"command": "x", "reasoning": "why"}, {"stdout": "ü", "exit_code": 0})
    path = auditor.save_session()
    assert path == tmp_path / f"{auditor.session_id}.json"
    text = path.read_text()
    data = json.loads(text)
    assert text == json.dumps(data, indent=2)
    assert list(data) == ["session_id", "started_at", "ended_at", "message_count", "messages"]
    message, call = data["messages"]
    assert (message["role"], message["content"]) == ("user", "Check it.")
    assert set(call) == {"timestamp", "type", "tool", "parameters", "result"}
    assert (call["type"], call["tool"], call["parameters"]["reasoning"]) == ("tool_call", "shell", "why")
    assert data["started_at"] == message["timestamp"]
    assert data["message_count"] == 2
    for time in (data["started_at"], data["ended_at"], call["timestamp"]):
        assert datetime.fromisoformat(time).tzinfo is not None
        assert re.search(r"\.\d{6}\+00:00$", time)
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_session(tmp_path: Path) -> None:
    data = json.loads(SessionAuditor(tmp_path).save_session().read_text())
    assert (data["started_at"], data["message_count"], data["messages"]) == (None, 0, [])


def test_content_may_be_anything(tmp_path: Path) -> None:
    """D-15: `json.dumps` alone raises on all of these."""
    auditor = SessionAuditor(tmp_path)
    blocks = [
        TextBlock(type="text", text="hello"),
        ToolUseBlock(type="tool_use", id="toolu_1", name="shell", input={"command": "x"}),
    ]
    auditor.log_message("assistant", blocks)
    auditor.log_tool_call(
        "shell", {"at": datetime(2026, 1, 28, tzinfo=UTC)}, {"raw": b"\xff\x00", "s": {3, 1}, "p": tmp_path}
    )
    auditor.log_message("user", object())
    first, call, other = json.loads(auditor.save_session().read_text())["messages"]
    assert [b["type"] for b in first["content"]] == ["text", "tool_use"]
    assert first["content"][0]["text"] == "hello"
    assert first["content"][1]["input"] == {"command": "x"}
    assert call["parameters"] == {"at": "2026-01-28T00:00:00+00:00"}
    assert call["result"] == {"raw": {"base64": "/wA="}, "s": [1, 3], "p": str(tmp_path)}
    assert isinstance(other["content"], str)


def test_a_crash_before_saving_loses_nothing(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom operator_core.agent_lab.audit import SessionAuditor\n"
        "a = SessionAuditor(Path(sys.argv[1]))\nfor n in range(50):\n    a.log_message('user', f'message {n}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=operator_environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert [json.loads(line)["content"] for line in left.read_text().splitlines()] == [
        f"message {n}" for n in range(50)
    ]


def test_a_full_disk_does_not_replace_what_was_saved(tmp_path: Path) -> None:
    """The file appears whole or not at all."""
    auditor = SessionAuditor(tmp_path)
    auditor.log_message("user", "one")
    before = auditor.save_session().read_text()
    auditor.messages.append({"content": Unwritable()})
    try:
        auditor.save_session()
    except OSError:
        pass
    else:
        raise AssertionError("it should have failed")
    assert (tmp_path / f"{auditor.session_id}.json").read_text() == before
    assert os.listdir(tmp_path) == [f"{auditor.session_id}.json"]


class Unwritable:
    """Fails while it is written, as a disk does."""

    def to_dict(self) -> None:
        raise OSError(28, "No space left on device")
