"""The scripted server's brains, its rules for histories, its token counts and its log; without a socket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.errors import ConfigError
from operator_core.scripted import (
    Brain,
    Call,
    Failure,
    FunctionBrain,
    Reply,
    RequestLog,
    Router,
    ScriptBrain,
    SummaryBrain,
    Turn,
    rules,
    wire,
)

Json = dict[str, Any]


def user(*content: Any) -> Json:
    return {"role": "user", "content": list(content) if not isinstance(content[0], str) else content[0]}


def assistant(*content: Any) -> Json:
    return {"role": "assistant", "content": list(content)}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def use(call_id: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "shell", "input": arguments}


def result(call_id: str, content: Any = "{}", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def body(*messages: Json, **more: Any) -> Json:
    return {"model": "claude-opus-5-5", "max_tokens": 100, "messages": list(messages), **more}


def turn(*messages: Json, attempt: int = 0, **more: Any) -> Turn:
    return replace(Turn.from_body(body(*messages, **more)), attempt=attempt)


# The turn


def test_a_turn_shows_what_the_last_calls_brought_back() -> None:
    seen = turn(
        user("fix it"),
        assistant(use("a", command="ls")),
        user(result("a", '{"old": 1}')),
        assistant(text("and"), use("b", command="cat x"), use("c", command="id")),
        user(result("c", [text('{"exit": 1}')], is_error=True), result("b", "plain"), text("note")),
        system=[text("be"), text("brief")],
        tools=[{"name": "shell"}, {"name": "give_up"}],
        metadata={"user_id": "s-1"},
    )
    assert [(r.tool_use_id, r.name, r.input, r.text, r.data, r.is_error) for r in seen.results] == [
        ("c", "shell", {"command": "id"}, '{"exit": 1}', {"exit": 1}, True),
        ("b", "shell", {"command": "cat x"}, "plain", None, False),
    ]
    assert [r.tool_use_id for r in seen.history()] == ["a", "c", "b"]
    assert (seen.step, seen.first_text, seen.last_text, seen.user_id) == (2, "fix it", "note", "s-1")
    assert (seen.system, seen.tools) == ("be\nbrief", ("shell", "give_up"))


@pytest.mark.parametrize("content", ["{broken", "[1]", '"x"', "", None, [{"type": "image"}]])
def test_a_result_that_is_no_json_object_has_no_data(content: Any) -> None:
    seen = turn(user("x"), assistant(use("a")), user(result("a", content)))
    assert seen.results[0].data is None


def test_a_conversation_is_told_apart_by_its_first_words_or_its_user_id() -> None:
    one = turn(user("x"))
    assert one.conversation == turn(user("x"), assistant(text("y")), user("z")).conversation
    assert one.conversation != turn(user("y")).conversation
    assert one.conversation != turn(user("x"), metadata={"user_id": "other"}).conversation
    assert one.place != turn(user("x"), assistant(text("y")), user("z")).place
    assert one.place != replace(one, model="claude-haiku-5-5").place


# The brains


async def ask(brain: Brain, step: int, attempt: int = 0) -> str:
    history = [m for n in range(step) for m in (assistant(text(f"a{n}")), user(f"u{n}"))]
    answer = await brain.reply(turn(user("go"), *history, attempt=attempt))
    return answer.text if isinstance(answer, Reply) and answer.fault is None else type(answer).__name__


async def test_failures_and_faults_come_before_the_reply_of_their_step() -> None:
    brain = ScriptBrain([Reply("one"), Failure(529, times=2), Reply("lost", drop="mid"), Reply("two"), Reply("three")])
    assert [await ask(brain, 0, attempt) for attempt in (0, 5)] == ["one", "one"]
    assert [await ask(brain, 1, attempt) for attempt in range(5)] == ["Failure", "Failure", "Reply", "two", "two"]
    assert await ask(brain, 2) == "three"
    assert await ask(brain, 3) == "The script is over."


async def test_a_failure_without_end_never_lets_the_script_go_on() -> None:
    brain = ScriptBrain([Failure(500, times=None), Reply("never")], after=Reply("over"))
    assert [await ask(brain, 0, attempt) for attempt in (0, 99)] == ["Failure", "Failure"]
    assert await ask(ScriptBrain([Failure(500)], after=Reply("over")), 0, 1) == "over"


@pytest.mark.parametrize("status", [200, 399, 600])
def test_a_failure_must_be_one(status: int) -> None:
    with pytest.raises(ConfigError, match="400 to 599"):
        Failure(status)


async def test_a_function_may_be_plain_or_async_and_return_words() -> None:
    async def later(seen: Turn) -> Reply:
        return Reply(f"async {seen.step}")

    assert await ask(FunctionBrain(lambda seen: f"plain {seen.step}"), 1) == "plain 1"
    assert await ask(FunctionBrain(later), 2) == "async 2"


@pytest.mark.parametrize(
    ("asked", "summary"),
    [
        ("starting\nok\nValueError: no\nlater error", "ValueError: no"),
        ("Say which errors there were.\n<command>x</command>\n<output>\nall well\n12 passed\n</output>", "12 passed"),
        ("zero errors\nDone.\n\n", "Done."),
        ("<output>\n\n</output>", "(no output)"),
        ("e" * 300 + " failed", "e" * 159 + "…"),
    ],
)
async def test_a_summary_is_the_first_line_that_looks_like_an_error(asked: str, summary: str) -> None:
    answer = await SummaryBrain().reply(turn(user(asked)))
    assert isinstance(answer, Reply)
    assert answer.text == summary


async def test_the_router_knows_summaries_prefixes_and_predicates() -> None:
    router = Router(
        {
            "claude-opus": FunctionBrain(lambda _: "opus"),
            (lambda seen: "verifier" in seen.system): FunctionBrain(lambda _: "verifier"),
        },
        summaries=FunctionBrain(lambda _: "summary"),
    )

    async def to(model: str, **more: Any) -> str:
        answer = await router.reply(turn(user("x"), **more, model=model))
        return answer.text if isinstance(answer, Reply) else str(answer.status)

    def turn(message: Json, **more: Any) -> Turn:
        return Turn.from_body({**body(message), **more})

    assert await to("claude-opus-5-5") == "opus"
    assert await to("claude-sonnet-5-5", system="you are the verifier") == "verifier"
    assert await to("claude-haiku-5-5") == "summary"
    assert await to("claude-haiku-5-5", tools=[{"name": "shell"}]) == "404"
    assert await to("claude-sonnet-5-5") == "404"
    assert Router.around(router) is router


# The rules


GOOD = (
    body(user("x")),
    body(user("x"), assistant(text("y")), user("z")),
    body(user("x"), assistant(text("y"), use("a"), use("b")), user(result("b"), result("a"), text("note"))),
    body(user("x"), user("y"), assistant(use("a")), user(result("a", None)), {"role": "system", "content": "mode"}),
    body(user("x"), assistant({"type": "thinking", "thinking": "t", "signature": rules.signature("t")}), user("y")),
    body(user("x"), assistant({"type": "thinking", "thinking": "t", "signature": "of a real model"}), user("y")),
    body(user("x"), tools=[{"name": "a"}, {"name": "b"}]),
)


@pytest.mark.parametrize("request_body", GOOD)
def test_a_right_history_is_accepted(request_body: Json) -> None:
    assert rules.check(request_body) is None


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ([], "must be a JSON object"),
        ({**body(user("x")), "model": None}, "model: Field required"),
        ({**body(user("x")), "model": 3}, "model: Input should be a valid string"),
        ({**body(user("x")), "max_tokens": None}, "max_tokens: Field required"),
        ({**body(user("x")), "max_tokens": 0}, "max_tokens"),
        ({**body(user("x")), "messages": None}, "messages: Field required"),
        (body(), "at least one message is required"),
        (body(user("")), "messages.0: user messages must have non-empty content"),
        (body({"role": "user", "content": []}), "non-empty content"),
        (body(user(text(""))), "text content blocks must be non-empty"),
        (body(user("  \n")), "non-whitespace"),
        (body({"role": "robot", "content": "x"}), "messages.0.role"),
        (body(user(7)), "Input should be an object with a `type`"),
        (body(assistant(text("x")), user("y")), 'first message must use the "user" role'),
        (body(user("x"), assistant(use("a"))), "messages.1: `tool_use` ids were found without `tool_result`"),
        (body(user("x"), assistant(use("a")), user("y")), "immediately after: a."),
        (body(user("x"), assistant(use("a"), use("b")), user(result("a"))), "immediately after: b."),
        (body(user("x"), assistant(use("a")), user("later"), user(result("a"))), "without `tool_result`"),
        (body(user("x"), assistant(use("a")), user(text("first"), result("a"))), "without `tool_result`"),
        (body(user("x"), assistant(result("a")), user("y")), "messages.1.content.0: unexpected `tool_use_id`"),
        (body(user(result("a"))), "messages.0.content.0: unexpected `tool_use_id`"),
        (
            body(user("x"), assistant(use("a")), user(result("a")), user(result("a"))),
            "messages.3.content.0: unexpected",
        ),
        (body(user("x"), assistant(use("a")), user(result("a"), result("a"))), "must have a single result"),
        (body(user("x"), assistant(use("a")), user(result("a"), result("b"))), "unexpected `tool_use_id`"),
        (
            body(user("x"), assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a"))),
            "ids must be unique",
        ),
        (
            body(user("x"), assistant({"type": "thinking", "thinking": "t!", "signature": rules.signature("t")})),
            "Invalid `signature`",
        ),
        (body(user("x"), assistant({"type": "thinking", "thinking": "t"})), "signature: Field required"),
        (body(user("x"), tools=[{"name": "a"}, {"name": "a"}]), "must be unique"),
        (body(user("x"), tools=[{"name": "a b"}]), "tools.0.name"),
    ],
)
def test_a_wrong_history_is_refused_in_the_words_of_the_api(request_body: Any, message: str) -> None:
    assert message in str(rules.check(request_body))


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "tool_use"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "id", "tool_use_id", "input", "name", "thinking"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSONS, max_size=4), JSONS)
def test_no_request_is_strange_enough_to_raise(messages: list[Any], tools: Any) -> None:
    request_body = {"model": "m", "max_tokens": 1, "messages": messages, "tools": tools}
    problem = rules.check(request_body)
    if problem is None:
        seen = Turn.from_body(request_body)
        assert len(list(seen.history())) >= len(seen.results)
        assert seen.place
        assert wire.prompt_of(request_body).total > 0


# Token counts


def conversation(step: int, **more: Any) -> Json:
    messages = [user("the task " * 50)]
    for n in range(step):
        messages += [assistant(text("look " * 9), use(f"t{n}", command="x" * 40)), user(result(f"t{n}", "y" * 900))]
    return body(*messages, system=[text("s" * 800)], tools=[{"name": "shell", "description": "d" * 500}], **more)


def test_each_turn_reads_from_the_cache_what_the_turn_before_had_written() -> None:
    prompts = [wire.prompt_of(conversation(step, cache_control={"type": "ephemeral"})) for step in range(5)]
    assert prompts[0].read == 0
    for before, after in pairwise(prompts):
        assert after.read == before.total
        assert after.written > 0
    plain = [wire.prompt_of(conversation(step)) for step in range(5)]
    assert [p.total for p in plain] == [p.total for p in prompts]
    assert all(p.read == p.written == 0 for p in plain)


def test_a_breakpoint_in_the_system_prompt_caches_only_what_comes_before_the_messages() -> None:
    def marked(step: int) -> wire.Prompt:
        request_body = conversation(step)
        request_body["system"][0]["cache_control"] = {"type": "ephemeral"}
        return wire.prompt_of(request_body)

    first, later = marked(0), marked(3)
    assert first.written == later.read > 0
    assert first.read == later.written == 0
    assert later.fresh > first.fresh


# The log


def add(log: RequestLog, raw: bytes, headers: Mapping[str, str] | None = None) -> int:
    return log.add("POST", "/v1/messages", headers or {}, raw, len(raw), "req_1")


def test_the_log_keeps_no_key() -> None:
    log = RequestLog()
    add(log, b"{}", {"Authorization": "Bearer s3cret", "X-Api-Key": "s3cret", "cookie": "s3cret", "accept": "x"})
    assert "s3cret" not in json.dumps(log.requests()[0].to_json())
    assert "s3cret" not in repr(log.requests())
    assert log.requests()[0].headers["accept"] == "x"


def test_the_log_is_bounded_in_requests_and_in_bytes() -> None:
    log = RequestLog(max_requests=4, max_body_bytes=30)
    for number in range(6):
        add(log, json.dumps({"n": number, "x": "y"}).encode())  # 18 bytes
    kept = log.requests()
    assert [entry.number for entry in kept] == [3, 4, 5, 6]
    assert [entry.body for entry in kept] == [None, None, None, {"n": 5, "x": "y"}]
    assert log.count == 6
    log.update(1, status=200)  # forgotten; harmless
    add(log, b"z" * 31)
    assert log.requests()[-1].raw is None
    add(log, b"{}")
    assert log.requests()[-1].body == {}


def test_model_calls_are_found_by_the_beginning_of_the_model() -> None:
    log = RequestLog()
    for model in ("claude-opus-5-5", "claude-haiku-5-5", None):
        log.update(add(log, b"{}"), model=model)
    assert [r.model for r in log.model_calls()] == ["claude-opus-5-5", "claude-haiku-5-5"]
    assert [r.model for r in log.model_calls("claude-haiku")] == ["claude-haiku-5-5"]


@pytest.mark.usefixtures("cold")
def test_importing_the_brains_loads_no_web_stack() -> None:
    code = (
        "import sys, operator_core.scripted as s; s.ScriptBrain, s.Call;"
        "print(sorted({'starlette', 'uvicorn', 'anthropic', 'pydantic'} & set(sys.modules)));"
        "s.ScriptedServer; s.make_app; print('starlette' in sys.modules, sorted(s.__all__) == s.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[]", "True True"]


def test_a_call_without_arguments_is_a_call() -> None:
    message = wire.message_of(Reply(calls=(Call("stop"), Call("stop"))), "m", wire.Prompt(1, 0, 0))
    ids = [block["id"] for block in message["content"]]
    assert len(set(ids)) == 2
    assert [block["input"] for block in message["content"]] == [{}, {}]
    assert message["stop_reason"] == "tool_use"
