"""The scripted server as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import pytest

from operator_core.errors import ModelUnreachable
from operator_core.scripted import ScriptedProcess
from tests.support.processes import processes_of
from tests.support.waiting import wait_until

BRAIN = """
from operator_core.scripted import Call, Reply, ScriptBrain

def factory():
    return ScriptBrain([Reply(calls=(Call("shell", {"command": "ls"}),)), Reply("done")])

ready_made = factory()
not_a_brain = dict
"""


@pytest.fixture
def brain(tmp_path: Path) -> str:
    path = tmp_path / "brains.py"
    path.write_text(BRAIN)
    return str(path)


def ask(base_url: str, key: str = "k", messages: Any = None) -> anthropic.types.Message:
    with anthropic.Anthropic(api_key=key, base_url=base_url, max_retries=0, timeout=20) as client:
        return client.messages.create(
            model="claude-opus-5-5", max_tokens=9, messages=messages or [{"role": "user", "content": "hi"}]
        )


def test_it_serves_from_its_own_process_and_ends_with_its_block(brain: str) -> None:
    with ScriptedProcess(f"{brain}:factory", api_key="s3cret") as server:
        assert ask(server.base_url, "s3cret").stop_reason == "tool_use"
        with pytest.raises(anthropic.AuthenticationError):
            ask(server.base_url, "other")
        assert [request["status"] for request in server.requests()] == [200, 401]
        assert server.requests()[0]["body"]["model"] == "claude-opus-5-5"
        assert [call["step"] for call in server.model_calls("claude-opus")] == [0]
        assert b"s3cret" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()
    server.stop()


def test_a_killed_server_forgets_nothing_that_a_conversation_needs(brain: str) -> None:
    first = ScriptedProcess(f"{brain}:ready_made")
    reply = ask(first.base_url)
    first.kill()
    with pytest.raises(anthropic.APIConnectionError):
        ask(first.base_url)
    call = reply.content[0].to_dict()
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "x"}]},
    ]
    with ScriptedProcess(f"{brain}:ready_made", port=first.port) as second:
        assert second.port == first.port
        assert ask(second.base_url, messages=history).content[0].to_dict()["text"] == "done"


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent", "cannot be loaded"), ("not_a_brain", "gives no brain"), ("", "cannot be loaded")],
)
def test_a_wrong_brain_is_said_in_one_sentence(brain: str, name: str, message: str) -> None:
    with pytest.raises(ModelUnreachable, match=message):
        ScriptedProcess(f"{brain}:{name}")
    with pytest.raises(ModelUnreachable, match="cannot be loaded"):
        ScriptedProcess(f"no.such.module:{name}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_entry_says_what_it_is_and_ends_quietly_on_a_signal(brain: str, tmp_path: Path, number: int) -> None:
    port_file = tmp_path / "port"
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "operator_core.scripted",
        "--brain",
        f"{brain}:factory",
    ]
    with subprocess.Popen(
        [*command, "--port-file", str(port_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            port = wait_until(lambda: port_file.exists() and int(port_file.read_text()))
            assert ask(f"http://127.0.0.1:{port}").stop_reason == "tool_use"
            process.send_signal(number)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert "Scripted model server" in out
    assert f"http://127.0.0.1:{port}" in out


def test_it_ends_when_the_process_that_started_it_is_killed(brain: str) -> None:
    code = (
        "import sys, time; from operator_core.scripted import ScriptedProcess;"
        f"p = ScriptedProcess({brain + ':factory'!r}); print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert pid in processes_of(brain)
        os.kill(starter.pid, signal.SIGKILL)
    wait_until(lambda: pid not in processes_of(brain), what="the server ends with its starter")
