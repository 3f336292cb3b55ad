"""The pure parts of the Claude Code engine: command line, lines, replies, endings, plans."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.agent_lab.claude_code import find_program, program_version
from operator_core.agent_lab.claude_code.argv import FOREIGN, cli_argv, cli_environment
from operator_core.agent_lab.claude_code.events import EventReader, ending_of
from operator_core.agent_lab.claude_code.forwarder import owns_connection
from operator_core.agent_lab.claude_code.plan import (
    CONTINUE,
    CliResult,
    Plan,
    make_plan,
    session_ended,
    session_started,
)
from operator_core.agent_lab.claude_code.proxy import listen
from operator_core.agent_lab.claude_code.record import exit_code_of
from operator_core.agent_lab.claude_code.reply import ReplyReader, ReplyTooLarge, calls_of, texts_of, usage_of
from operator_core.agent_lab.claude_code.service import meaning_of, reaches_out
from operator_core.agent_lab.claude_code.stream import MAX_LINE, LineReader
from operator_core.config import ClaudeCodeSettings, ModelSettings
from operator_core.errors import ConfigError, ModelNotUsable, ModelRefused, ModelUnreachable
from operator_core.model.entry import Draft, Entry
from operator_core.scripted import Call, Reply
from operator_core.scripted.wire import Prompt, message_of, stream_events

# ---- the command


def test_the_command_line_is_the_one_that_the_requirements_name() -> None:
    words = cli_argv(Path("/c"), session="s", resume=False, model="m")
    assert words[:2] == ["/c", "-p"]
    for flag in ("--verbose", "--include-partial-messages", "--dangerously-skip-permissions", "--strict-mcp-config"):
        assert flag in words
    assert words[words.index("--output-format") + 1] == "stream-json"
    assert words[words.index("--session-id") + 1] == "s"
    assert words[words.index("--model") + 1] == "m"
    assert "--resume" not in words
    assert "--safe-mode" not in words


def test_a_resumed_command_names_the_session_it_resumes() -> None:
    words = cli_argv(
        Path("/c"), session="s", resume=True, model="m", system_file=Path("/f"), schema={"a": "é"}, untrusted=True
    )
    assert words[words.index("--resume") + 1] == "s"
    assert "--session-id" not in words
    assert words[words.index("--append-system-prompt-file") + 1] == "/f"
    assert words[words.index("--json-schema") + 1] == '{"a":"é"}'
    assert "--safe-mode" in words


def test_the_environment_is_made_of_nothing_but_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "ours")
    monkeypatch.setenv("CLAUDECODE", "1")
    env = cli_environment(ClaudeCodeSettings(), config_dir=Path("/d"), token="t", max_output_tokens=9)
    assert env["ANTHROPIC_API_KEY"] == "t"
    assert env["CLAUDE_CONFIG_DIR"] == "/d"
    assert env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert (env["CLAUDE_CODE_MAX_RETRIES"], env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == ("3", "9")
    assert "ours" not in env.values()
    assert "CLAUDECODE" not in env
    assert "CLAUDECODE".startswith(FOREIGN)


def test_the_program_of_the_configuration_wins_and_must_be_one(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    settings = ClaudeCodeSettings(program=program)
    with pytest.raises(ConfigError, match=r"no Claude Code program at .*\[claude_code\] program"):
        find_program(settings)
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="not executable"):
        find_program(settings)
    program.chmod(0o755)
    assert find_program(settings) == program.resolve()
    assert program_version(program) == ""
    (tmp_path / "claude.version").write_text("2.1.330 (Claude Code)\n")
    assert program_version(program) == "2.1.330"


def test_a_program_that_is_only_on_the_search_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "claude").write_text("#!/bin/sh\n")
    (tmp_path / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"operator-core\[claude-code\].*make claude-code"):
        find_program(ClaudeCodeSettings())


# ---- lines


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(p, len(data)) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


JSON_OBJECTS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=3)


@given(st.lists(JSON_OBJECTS, max_size=6), st.lists(st.integers(0, 400), max_size=8), st.sampled_from([b"\n", b"\r\n"]))
def test_lines_may_be_cut_anywhere(values: list[dict[str, Any]], places: list[int], end: bytes) -> None:
    reader = LineReader()
    data = b"".join(json.dumps(value).encode() + end for value in values)
    got = [value for part in cut(data, places) for value in reader.feed(memoryview(part))]
    assert got + reader.flush() == values
    assert reader.skipped == 0


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_hostile_lines_are_harmless_and_hide_nothing_that_follows(parts: list[bytes]) -> None:
    reader = LineReader(max_line=50)
    for part in parts:
        reader.feed(part)
    assert reader.feed(b'\n{"type": "result"}\n')[-1] == {"type": "result"}


def test_what_is_no_object_is_counted() -> None:
    reader = LineReader()
    assert reader.feed(b'[1]\nnonsense\n\n  \n"x"\n' + b"[" * 100_000 + b"\n{}\n") == [{}]
    assert reader.skipped == 4


def test_a_line_of_16_mib_is_read_and_a_longer_one_left_out() -> None:
    reader = LineReader()
    fits = b'{"a":"' + b"x" * (MAX_LINE - 8) + b'"}'
    assert len(fits) == MAX_LINE
    got = [v for at in range(0, MAX_LINE, 1 << 18) for v in reader.feed(fits[at : at + (1 << 18)])] + reader.feed(b"\n")
    assert len(got) == 1
    for _ in range(80):
        assert reader.feed(b"y" * (1 << 18)) == []
    assert reader.feed(b'"}\n{"b":1}\n') == [{"b": 1}]
    assert reader.skipped == 1


# ---- replies


def events(reply: Reply) -> list[bytes]:
    return stream_events(message_of(reply, "m", Prompt(5, 6, 7)))


CALLS = Reply(text="Hello é\n\n", thinking="Hm.", calls=(Call("Bash", {"command": "true é"}), Call("Read", {"n": 1})))


@given(st.lists(st.integers(0, 4000), max_size=12))
def test_a_reply_comes_out_as_it_went_in_however_it_is_cut(places: list[int]) -> None:
    data = b"".join(events(CALLS))
    reader = ReplyReader()
    passed = b"".join(reader.feed(part) for part in cut(data, places))
    assert reader.complete
    # The CLI starts a tool at the end of its block.
    assert passed.count(b"content_block_stop") == 2 * 2
    assert b"message_stop" not in passed
    assert passed + reader.release() == data
    assert reader.message is not None
    assert texts_of(reader.message) == ["Hello é\n\n"]
    assert [call["input"] for call in calls_of(reader.message)] == [{"command": "true é"}, {"n": 1}]
    assert reader.message["content"][0]["signature"].startswith("scripted-")
    assert reader.message["stop_reason"] == "tool_use"
    usage = usage_of(reader.message)
    assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (5, 6, 7)
    assert usage.output_tokens > 1


def test_the_end_of_a_text_waits_too() -> None:
    parts = events(Reply(text="Hello"))
    reader = ReplyReader()
    passed = b"".join(reader.feed(part) for part in parts)
    assert b"text_delta" in passed
    assert b"message_delta" not in passed


def test_a_reply_that_is_cut_off_is_not_complete_and_its_usage_is_known() -> None:
    parts = events(CALLS)
    reader = ReplyReader()
    for part in parts[: len(parts) // 2]:
        reader.feed(part)
    assert not reader.complete
    assert reader.message is not None
    assert usage_of(reader.message).cache_creation_input_tokens == 6


def test_an_error_in_a_reply_is_kept() -> None:
    reader = ReplyReader()
    data = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
    assert reader.feed(data) == data
    assert reader.error == {"type": "overloaded_error", "message": "busy"}


@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"data: {}\n\n", b"\n\n", b'data: {"type":"message_start"}\n\n'])
    )
)
def test_a_reply_of_nonsense_does_not_raise(parts: list[bytes]) -> None:
    reader = ReplyReader()
    out = b"".join(reader.feed(part) for part in parts) + reader.release()
    assert out == b"".join(parts)


EVENT_WORDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
)
ODD = st.none() | st.integers(-2, 3) | st.text(max_size=4) | st.just([]) | st.just({}) | st.just({"type": "tool_use"})
ODD_FIELDS = dict.fromkeys(("message", "index", "content_block", "delta", "usage"), ODD)


@given(st.lists(st.fixed_dictionaries({"type": EVENT_WORDS}, optional=ODD_FIELDS), max_size=12))
def test_replies_of_odd_events_do_not_raise(values: list[dict[str, Any]]) -> None:
    reader = ReplyReader()
    data = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    assert reader.feed(data) + reader.release() == data
    if reader.message is not None:
        usage_of(reader.message)
        texts_of(reader.message)
        calls_of(reader.message)


def test_a_reply_without_end_is_stopped() -> None:
    reader = ReplyReader(max_bytes=1000)
    reader.feed(b"x" * 1000)
    with pytest.raises(ReplyTooLarge):
        reader.feed(b"x")


# ---- endings


@pytest.mark.parametrize(
    ("event", "ok"),
    [
        ({"subtype": "success", "is_error": False, "terminal_reason": "completed"}, True),
        ({"subtype": "success", "is_error": True, "terminal_reason": "api_error", "api_error_status": 529}, False),
        ({"subtype": "success", "is_error": False, "terminal_reason": "budget_exhausted"}, False),
        ({"subtype": "error_max_turns", "is_error": True}, False),
        ({"subtype": "success"}, False),
        ({"subtype": "success", "is_error": "false"}, False),
        (None, False),
    ],
)
def test_an_ending_is_judged_by_its_error_and_its_reason(event: dict[str, Any] | None, ok: bool) -> None:
    assert ending_of(event).ok is ok


def test_an_ending_says_why_in_one_line() -> None:
    ending = ending_of(
        {"is_error": True, "terminal_reason": "api_error", "api_error_status": 529, "result": "a\x1b[2J\nb"}
    )
    assert ending.api_error == 529
    assert ending.detail == "api_error: a"


@pytest.mark.parametrize(
    ("text", "is_error", "detail", "code"),
    [
        ("42", False, {"stdout": "42"}, 0),
        ("", False, {"stdout": "", "interrupted": True}, None),
        ("", False, {"stdout": "", "returnCodeInterpretation": "No matches found"}, 1),
        ("running", False, {"stdout": "", "backgroundTaskId": "b1"}, None),
        ("Exit code 7\nboom", True, "Error: Exit code 7\nboom", 7),
        ("Exit code 7x", True, None, None),
        ("I ran it. Exit code 0", True, None, None),
        ("Exit code 0\nall fine", False, None, None),
        ("The tool was refused", True, None, None),
    ],
)
def test_exit_codes_are_those_that_the_cli_says(text: str, is_error: bool, detail: Any, code: int | None) -> None:
    assert exit_code_of(text, is_error, detail) == code


class Told:
    """What an :class:`EventReader` tells its record."""

    def __init__(self) -> None:
        self.open = {"t1": "Bash"}
        self.got: list[Any] = []

    def printed(self, *values: Any) -> None:
        self.got.append(values)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "system", "result", "é"])
NAMES = st.sampled_from(["type", "subtype", "message", "content", "tool_use_id", "is_error", "retry_delay_ms"])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))


@given(st.lists(TREES, max_size=5))
async def test_odd_events_do_no_harm(values: list[Any]) -> None:
    reader = EventReader(Told(), lambda line: None)  # type: ignore[arg-type]
    for value in values:
        reader.feed("stdout", memoryview(json.dumps(value).encode() + b"\n"))


async def test_results_are_read_from_stdout_alone() -> None:
    told = Told()
    reader = EventReader(told, lambda line: None)  # type: ignore[arg-type]
    block = {"type": "tool_result", "tool_use_id": "t1", "content": "42", "is_error": False}
    line = json.dumps({"type": "user", "message": {"content": [block]}, "tool_use_result": {"stdout": "42"}}).encode()
    reader.feed("stderr", memoryview(line + b"\n"))
    assert told.got == []
    reader.feed("stdout", memoryview(line + b"\n"))
    assert told.got == [("t1", "42", False, {"stdout": "42"})]


# ---- plans

RESULT = CliResult("done", "It works.", {"ok": True}, 3, "", "")


def journal(*drafts: Draft) -> list[Entry]:
    return [
        Entry(n, "s", n, str(d.kind), d.content, d.raw_content, d.tool_name, d.tool_params, d.exit_code, "",
              d.tool_use_id, "worker_1", 1, d.body, d.meta, "", "")
        for n, d in enumerate(drafts)
    ]  # fmt: skip


def told(text: str) -> Draft:
    return Draft("message", text, text, body={"role": "user", "content": text})


SAID = Draft("message", body={"role": "assistant", "content": []})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "projects" / "-work").mkdir(parents=True)
    return tmp_path


def accepted(config: Path, session: str) -> None:
    (config / "projects" / "-work" / f"{session}.jsonl").write_text("{}\n")


def test_the_first_start_is_fresh(config: Path) -> None:
    first, second = make_plan([], "Do it.", config), make_plan([], "Do it.", config)
    assert (first.resume, first.prompt, first.ended) == (False, "Do it.", None)
    assert first.session != second.session
    assert len(first.session) == 36


def test_a_crashed_run_goes_on_where_it_was(config: Path) -> None:
    plan = make_plan([], "Do it.", config)
    accepted(config, plan.session)
    begun = [session_started(plan, "Do it.", "2"), told("Do it.")]
    assert make_plan(journal(*begun), "Do it.", config) == Plan(plan.session, True, "Do it.")
    assert make_plan(journal(*begun, SAID), "Do it.", config) == Plan(plan.session, True, CONTINUE)
    again = [*begun, SAID, session_started(Plan(plan.session, True, CONTINUE), "Do it.", "2"), told(CONTINUE)]
    assert make_plan(journal(*again), "Do it.", config) == Plan(plan.session, True, CONTINUE)


def test_a_session_that_the_cli_never_had_is_begun_anew(config: Path) -> None:
    plan = make_plan([], "Do it.", config)
    again = make_plan(journal(session_started(plan, "Do it.", "2"), told("Do it.")), "Do it.", config)
    assert again.session != plan.session
    assert not again.resume
    assert again.prompt == "Do it."


def test_a_lost_transcript_is_told_again(config: Path) -> None:
    plan = make_plan([], "Do it.", config)
    call = Draft("tool_call", "Bash: rm x", tool_name="Bash", tool_use_id="t")
    begun = [session_started(plan, "Do it.", "2"), told("Do it."), SAID, Draft("reasoning", "I look.", "I look."), call]
    again = make_plan(journal(*begun), "Do it.", config)
    assert not again.resume
    assert again.prompt.startswith("Do it.\n")
    assert "I look." in again.prompt
    assert "The outcome of this call is unknown: Bash: rm x" in again.prompt


def test_what_the_transcript_lost_is_said(config: Path) -> None:
    plan = make_plan([], "Do it.", config)
    accepted(config, plan.session)
    calls = [
        Draft(
            "tool_call",
            f"Bash: cmd-{n}",
            tool_name="Bash",
            tool_params={"command": f"cmd-{n}"},
            tool_use_id=f"toolu_{n}",
        )
        for n in range(3)
    ]
    answer = Draft("tool_result", "exit 0", "the answer", tool_use_id="toolu_1")
    entries = journal(session_started(plan, "Do it.", "2"), told("Do it."), SAID, *calls, answer)
    (config / "projects" / "-work" / f"{plan.session}.jsonl").write_text('{"id": "toolu_0"}\n')
    again = make_plan(entries, "Do it.", config)
    assert again.resume
    assert again.prompt.startswith(CONTINUE)
    assert "cmd-0" not in again.prompt
    assert "the answer" in again.prompt
    assert "unknown: Bash: cmd-2" in again.prompt
    assert "unknown: Bash: cmd-1" not in again.prompt


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_transcript_that_is_no_file_is_none(config: Path, kind: str) -> None:
    plan = make_plan([], "Do it.", config)
    path = config / "projects" / "-work" / f"{plan.session}.jsonl"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert not make_plan(journal(session_started(plan, "Do it.", "2")), "Do it.", config).resume


def test_a_result_is_given_again_and_another_prompt_goes_on(config: Path) -> None:
    plan = make_plan([], "Do it.", config)
    accepted(config, plan.session)
    result = RESULT._replace(session_id=plan.session)
    ended = journal(session_started(plan, "Do it.", "2"), told("Do it."), SAID, session_ended(result, "Do it."))
    assert make_plan(ended, "Do it.", config).ended == result
    assert make_plan(ended, "The second.", config) == Plan(plan.session, True, "The second.")


def test_a_session_id_of_another_kind_is_no_path(config: Path) -> None:
    entry = Draft("engine_session", body={"cli_session_id": "../../x", "prompt": "?"})
    (config / "x.jsonl").write_text("{}")
    assert not make_plan(journal(entry), "Do it.", config).resume


# ---- the proxy's judgement


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ModelRefused), (401, ModelNotUsable), (403, ModelNotUsable), (404, ModelNotUsable), (413, ModelRefused),
     (429, ModelUnreachable), (500, ModelUnreachable), (529, ModelUnreachable)],
)  # fmt: skip
def test_what_a_status_means(status: int, kind: type[Exception]) -> None:
    error = meaning_of(status, "first\nsecond", ModelSettings(), "http://gateway")
    assert isinstance(error, kind)
    assert "http://gateway" in str(error)
    assert "first" in str(error)
    assert "second" not in str(error)


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ({"tools": [{"name": "Bash", "input_schema": {}}], "messages": []}, False),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, True),
        ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, True),
        ({"tools": [{"type": "code_execution_20250825", "name": "x"}]}, True),
        ({"mcp_servers": [{"url": "https://x"}]}, True),
        ({"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": ""}}]}]}, False),
        ({"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "document", "source": {"type": "url", "url": "x"}}]}]}]}, True),
        ({"messages": "nonsense", "tools": 3}, False),
    ],
)  # fmt: skip
def test_the_service_is_not_to_fetch_anything(body: dict[str, Any], out: bool) -> None:
    assert reaches_out(body) is out


async def test_a_socket_may_have_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 150)
    folder.mkdir()
    with listen(folder / "api") as sock:
        assert (folder / "api").is_socket()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_a_connection_belongs_to_the_process_that_made_it() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            mine = client.getsockname()[1]
            assert owns_connection(os.getpid(), mine, port)
            assert not owns_connection(os.getppid(), mine, port)
            assert not owns_connection(os.getpid(), mine, port + 1)
            assert not owns_connection(2**22 + 1, mine, port)
