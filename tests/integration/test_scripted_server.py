"""The scripted server as the real SDK sees it, over HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic, beta_async_tool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_core.clock import monotonic
from operator_core.errors import ModelUnreachable
from operator_core.scripted import (
    Answer,
    Brain,
    Call,
    Failure,
    FunctionBrain,
    Reply,
    Router,
    ScriptBrain,
    ScriptedServer,
    ServerThread,
    Turn,
)
from tests.support.waiting import free_port, wait_until_async

MODEL = "claude-opus-5-5"
HELLO: Any = [{"role": "user", "content": "hello"}]

Started = tuple[ScriptedServer, AsyncAnthropic]
Start = Callable[..., AbstractAsyncContextManager[Started]]


@asynccontextmanager
async def running(brain: Brain, *, key: str = "test", retries: int = 0, **options: Any) -> AsyncIterator[Started]:
    async with (
        ScriptedServer(brain, **options) as server,
        AsyncAnthropic(api_key=key, base_url=server.base_url, max_retries=retries, timeout=20) as client,
    ):
        yield server, client


def script(*answers: Answer) -> ScriptBrain:
    return ScriptBrain(answers)


async def ask(client: AsyncAnthropic, **more: Any) -> anthropic.types.Message:
    options: Any = {"model": MODEL, "max_tokens": 500, "messages": HELLO, **more}
    message: anthropic.types.Message = await client.messages.create(**options)
    return message


async def stream(client: AsyncAnthropic, **more: Any) -> anthropic.types.Message:
    async with client.messages.stream(**{"model": MODEL, "max_tokens": 500, "messages": HELLO, **more}) as events:
        message: anthropic.types.Message = await events.get_final_message()
        return message


WAYS = pytest.mark.parametrize("way", [ask, stream])


def http() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=20, trust_env=False)


# Whole answers


@WAYS
async def test_a_reply_arrives_whole_and_is_labelled(way: Any) -> None:
    reply = Reply(
        "Look.", thinking="Hm.", calls=(Call("shell", {"command": "ls"}), Call("shell")), usage={"input_tokens": 7}
    )
    async with running(script(reply)) as (server, client):
        message = await way(client)
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert [block.input for block in message.content[2:]] == [{"command": "ls"}, {}]
        assert message.content[2].id != message.content[3].id
        assert (message.stop_reason, message.usage.input_tokens, message.model) == ("tool_use", 7, MODEL)
        logged = server.model_calls("claude-opus")[0]
        assert (logged.status, logged.stop_reason, logged.step, logged.stream) == (200, "tool_use", 0, way is stream)
        assert logged.usage == {**logged.usage, **message.usage.to_dict()} if logged.usage else False
        raw = await client.messages.with_raw_response.create(model=MODEL, max_tokens=5, messages=HELLO)
        assert raw.headers["x-operator-engine"] == "scripted"
        assert raw.headers["request-id"] == server.requests[1].request_id


async def test_the_model_list_and_the_banner_say_that_it_is_scripted() -> None:
    async with running(script()) as (server, client):
        models = [model async for model in client.models.list()]
        assert "claude-haiku-5-5" in [model.id for model in models]
        assert all("scripted" in model.display_name for model in models)
        assert "scripted" in (await client.models.retrieve(MODEL)).display_name
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("gpt")
        with pytest.raises(anthropic.NotFoundError):
            await client.get("/v2/else", cast_to=object)
        assert "Scripted" in server.banner
        assert server.base_url in server.banner
        async with http() as plain:
            assert "Scripted" in (await plain.get(server.base_url)).text
        assert server.model_calls() == []


async def test_tokens_are_counted_as_they_are_charged() -> None:
    async with running(script(Reply("x"))) as (_, client):
        messages: Any = [{"role": "user", "content": "word " * 400}]
        counted = await client.messages.count_tokens(model=MODEL, messages=messages, system="s" * 400)
        message = await ask(client, messages=messages, system="s" * 400)
        assert counted.input_tokens == message.usage.input_tokens == 600
        cached = (await ask(client, messages=messages, system="s" * 400, cache_control={"type": "ephemeral"})).usage
        assert cached.cache_creation_input_tokens is not None
        assert cached.input_tokens + cached.cache_creation_input_tokens == 600


# A whole session


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("threads", [False, True])
async def test_the_tool_runner_works_through_parallel_calls(streaming: bool, threads: bool) -> None:
    ran: list[str] = []

    @beta_async_tool
    async def shell(command: str) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        ran.append(command)
        return json.dumps({"command": command, "exit_code": len(ran)})

    def think(turn: Turn) -> Answer:
        if turn.step == 0:
            return Reply("Two things.", calls=(Call("shell", {"command": "one"}), Call("shell", {"command": "two"})))
        if turn.step == 1:
            codes = [result.data["exit_code"] for result in turn.results if result.data]
            return Reply(calls=(Call("shell", {"command": f"saw {codes} of {turn.results[1].input['command']}"}),))
        return Reply(f"{sum(1 for _ in turn.history())} results; last: {turn.results[0].text}")

    async with running(FunctionBrain(think)) as (server, client):
        options: Any = {} if threads else {"thread": False}
        runner: Any = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=500, messages=HELLO, tools=[shell], stream=streaming, **options
        )
        final = await runner.until_done()
        assert ran == ["one", "two", "saw [1, 2] of two"]
        assert final.content[0].text == '3 results; last: {"command": "saw [1, 2] of two", "exit_code": 3}'
        assert [call.step for call in server.model_calls()] == [0, 1, 2]
        refused = [request for request in server.requests if request.status == 400]
        assert bool(refused) is threads


@WAYS
async def test_a_history_with_an_unanswered_call_is_refused(way: Any) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {}}
    history = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": "go on"}]
    async with running(script(Reply("x"))) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match=r"`tool_use` ids were found without.*toolu_1") as caught:
            await way(client, messages=history)
        assert caught.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="without `tool_result`"):
            await way(client, messages=history[:2])
        assert server.model_calls() == []
        assert [request.status for request in server.requests] == [400, 400]


async def test_only_a_paused_reply_may_be_sent_back_as_the_last_message() -> None:
    async with running(script(Reply("half", stop_reason="pause_turn"), Reply("whole"))) as (_, client):
        paused = await ask(client)
        back = {"role": "assistant", "content": [block.to_dict() for block in paused.content]}
        assert (await ask(client, messages=[*HELLO, back])).content[0].to_dict()["text"] == "whole"
        with pytest.raises(anthropic.BadRequestError, match="prefill"):
            await ask(client, messages=[*HELLO, {"role": "assistant", "content": "other"}])


async def test_two_conversations_at_the_same_time_do_not_mix() -> None:
    brain = script(Failure(529, times=1), Reply("first"), Failure(500, times=2), Reply("second"))

    async def talk(client: AsyncAnthropic, words: str) -> list[str]:
        heard: list[str] = []
        messages: list[Any] = [{"role": "user", "content": words}]
        for _ in range(5):
            try:
                message = await ask(client, messages=messages)
            except anthropic.InternalServerError as error:
                heard.append(str(error.status_code))
                continue
            heard.append(str(message.content[0].to_dict()["text"]))
            messages += [{"role": "assistant", "content": heard[-1]}, {"role": "user", "content": "next"}]
        return heard

    async with running(brain) as (_, client):
        talks = await asyncio.gather(*(talk(client, f"conversation {n}") for n in range(8)))
    assert talks == [["529", "first", "500", "500", "second"]] * 8


async def test_summaries_do_not_reach_the_brain_of_the_conversation() -> None:
    async with running(script(Reply("one"), Reply("two"))) as (server, client):
        summary = await ask(
            client, model="claude-haiku-5-5", messages=[{"role": "user", "content": "ok\nbad: Error 7"}]
        )
        assert summary.content[0].to_dict()["text"] == "bad: Error 7"
        assert (await ask(client)).content[0].to_dict()["text"] == "one"
        assert len(server.model_calls("claude-haiku")) == 1


# Failures and faults


async def test_a_rate_limit_carries_its_headers() -> None:
    failure = Failure(429, "slow down", headers={"retry-after": "7"}, details={"error_code": "x"})
    async with running(script(failure, Reply("now"))) as (server, client):
        with pytest.raises(anthropic.RateLimitError, match="slow down") as caught:
            await ask(client)
        assert caught.value.response.headers["retry-after"] == "7"
        assert (caught.value.type, caught.value.error_code) == ("rate_limit_error", "x")
        assert caught.value.request_id == server.requests[0].request_id
        assert (await ask(client)).content[0].to_dict()["text"] == "now"


@WAYS
async def test_an_overload_passes_when_the_sdk_retries(way: Any) -> None:
    async with running(script(Failure(529, times=2), Reply("ok")), retries=2) as (server, client):
        assert (await way(client)).content[0].text == "ok"
        assert [call.status for call in server.model_calls()] == [529, 529, 200]
        assert [call.attempt for call in server.model_calls()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (404, anthropic.NotFoundError),
        (413, anthropic.APIStatusError),
        (500, anthropic.InternalServerError),
    ],
)
async def test_each_failure_is_the_error_of_the_sdk(status: int, error: type[Exception]) -> None:
    async with running(script(Failure(status))) as (_, client):
        with pytest.raises(error, match="scripted"):
            await ask(client)


@pytest.mark.parametrize("drop", ["start", "mid"])
async def test_a_dropped_connection_is_a_connection_error(drop: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with running(script(Reply("word " * 50, drop=drop), Reply("ok"))) as (server, client):
        with pytest.raises(anthropic.APIConnectionError):
            await ask(client)
        assert (await ask(client)).content[0].to_dict()["text"] == "ok"
        assert [(call.status, call.fault) for call in server.model_calls()] == [
            (None if drop == "start" else 200, f"drop:{drop}"),
            (200, None),
        ]
    assert [
        record for record in caplog.records if record.name.startswith("uvicorn") and record.levelname != "INFO"
    ] == []


async def test_a_stream_dropped_in_the_middle_is_a_raw_protocol_error() -> None:
    async with running(script(Reply("word " * 200, drop="mid"), Reply("short", drop="start"))) as (_, client):
        seen = ""
        with pytest.raises(httpx2.RemoteProtocolError):  # noqa: PT012
            async with client.messages.stream(model=MODEL, max_tokens=500, messages=HELLO) as events:
                async for words in events.text_stream:
                    seen += words
        assert 0 < len(seen) < 1000
        with pytest.raises(anthropic.APIConnectionError):
            await stream(client)


async def test_a_truncated_stream_ends_as_if_nothing_were_wrong() -> None:
    cut = Reply(calls=(Call("shell", {"command": "x" * 500}),), truncate=True)
    async with running(script(cut, Reply("ok"))) as (server, client):
        message = await stream(client)
        assert message.stop_reason is None
        assert (await stream(client)).stop_reason == "end_turn"
        assert server.model_calls()[0].fault == "truncate"


async def test_a_truncated_answer_without_a_stream_is_no_message() -> None:
    async with running(script(Reply("word " * 50, truncate=True))) as (_, client):
        with pytest.raises((anthropic.APIError, ValueError)):
            await ask(client)


async def test_an_error_in_the_stream_has_its_type() -> None:
    broken = Reply("word " * 100, stream_error="overloaded_error", times=2)
    async with running(script(broken, Reply("ok"))) as (_, client):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stream(client)
        assert (caught.value.type, caught.value.status_code) == ("overloaded_error", 200)
        with pytest.raises(anthropic.InternalServerError) as caught:
            await ask(client)
        assert caught.value.status_code == 529
        assert (await stream(client)).content[0].to_dict()["text"] == "ok"


async def test_a_reply_can_be_slow_to_start_and_slow_to_go_on() -> None:
    async with running(script(Reply("x" * 200, delay_s=0.2, chunk_delay_s=0.05))) as (_, client):
        moments = [monotonic()]
        async with client.messages.stream(model=MODEL, max_tokens=500, messages=HELLO) as events:
            async for _ in events:
                moments.append(monotonic())
        assert moments[1] - moments[0] >= 0.2
        assert moments[-1] - moments[1] >= 0.05 * 4
        with pytest.raises(anthropic.APITimeoutError):
            await client.with_options(timeout=0.1).messages.create(model=MODEL, max_tokens=5, messages=HELLO)


async def test_an_error_in_the_brain_is_said_and_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(turn: Turn) -> Answer:
        if turn.step == 0:
            raise KeyError("oops")
        return Reply(calls=(Call("shell", {"not json": object()}),))

    async with running(FunctionBrain(stumble), retries=2) as (server, client):
        with pytest.raises(anthropic.InternalServerError, match="brain failed at step 0: KeyError: 'oops'"):
            await ask(client)
        with pytest.raises(anthropic.InternalServerError, match="step 1: TypeError"):
            await ask(client, messages=[*HELLO, {"role": "assistant", "content": "x"}, *HELLO])
        assert [call.status for call in server.model_calls()] == [500, 500]
        assert server.model_calls()[0].fault == "brain: KeyError: 'oops'"
    assert "oops" in caplog.text


# Keys, sizes, garbage


async def test_a_key_is_needed_in_either_header_and_never_logged() -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": HELLO}
    async with running(script(Reply("x")), key="s3cret-key", api_key="s3cret-key") as (server, client), http() as plain:
        await ask(client)
        url = f"{server.base_url}/v1/messages"
        good: list[dict[str, str]] = [{"x-api-key": "s3cret-key"}, {"Authorization": "bearer s3cret-key"}]
        bad: list[dict[str, str]] = [{}, {"x-api-key": "s3cret"}, {"Authorization": "s3cret-key"}, {"x-api-key": "ä"}]
        assert [(await plain.post(url, json=body, headers=h)).status_code for h in good] == [200, 200]
        codes = [
            (await plain.post(url, json=body, headers={k.encode(): v.encode() for k, v in h.items()})).status_code
            for h in bad
        ]
        assert codes == [401] * 4
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            await ask(client.with_options(api_key="wrong"))
        assert len(server.model_calls()) == 3
        assert (await plain.get(f"{server.base_url}/_log")).status_code == 401
        log = (await plain.get(f"{server.base_url}/_log", headers={"x-api-key": "s3cret-key"})).text
        assert "s3cret" not in log
        assert [entry["status"] for entry in json.loads(log)] == [200] * 3 + [401] * 5
        assert json.loads(log)[0]["body"]["messages"] == HELLO


async def test_any_key_will_do_but_none_will_not() -> None:
    async with running(script(Reply("x")), key="whatever") as (server, client), http() as plain:
        await ask(client)
        refused = await plain.post(f"{server.base_url}/v1/messages", json={})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        entries = (await plain.get(f"{server.base_url}/_log?bodies=0")).json()
        assert [entry.get("body", "left out") for entry in entries] == ["left out"] * 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"model": "\\ud800"}', b'{"model":"m","max_tokens":NaN}', b"\xff"]
)
async def test_garbage_is_a_bad_request(content: bytes) -> None:
    async with running(script(Reply("x"))) as (server, _), http() as plain:
        headers = {"x-api-key": "k"}
        answer = await plain.post(f"{server.base_url}/v1/messages", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_more_than_32_mib_is_too_large_and_the_server_goes_on() -> None:
    async with running(script(Reply("x"))) as (server, client):
        messages: Any = [{"role": "user", "content": "x" * (32 * 2**20)}]
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask(client, messages=messages)
        assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")
        assert server.requests[0].raw is None
        assert (await ask(client)).stop_reason == "end_turn"


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_header() -> None:
    async with running(script(Reply("x"))) as (_, client):
        took = []
        for _ in range(60):  # a fresh connection is acknowledged at once for a while
            started = monotonic()
            await ask(client)
            took.append(monotonic() - started)
        assert min(took[-10:]) < 0.03  # with Nagle's algorithm none is under 0.04


# Starting and stopping


async def test_leaving_ends_requests_that_still_wait(caplog: pytest.LogCaptureFixture) -> None:
    never = asyncio.Event()

    async def wait(turn: Turn) -> str:
        await never.wait()
        return "never"

    brains = Router({"claude-opus": FunctionBrain(wait), "claude-sonnet": script(Reply("x", delay_s=600))})
    before = asyncio.all_tasks()
    async with (
        ScriptedServer(brains) as server,
        AsyncAnthropic(api_key="k", base_url=server.base_url, max_retries=0) as c,
    ):
        asks = [asyncio.create_task(ask(c, model=m)) for m in (MODEL, "claude-sonnet-5-5")]
        await wait_until_async(lambda: len(server.model_calls()) == 2)
        assert [call.status for call in server.model_calls()] == [None, None]
        started = monotonic()
        await server.__aexit__(None, None, None)
        assert monotonic() - started < 2
        ends = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(end) for end in ends] == [anthropic.APIConnectionError] * 2
        with pytest.raises(anthropic.APIConnectionError):
            await ask(c)
    assert asyncio.all_tasks() == before
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    gc.collect()


async def test_a_client_that_gives_up_ends_the_wait_of_its_request() -> None:
    async with running(script(Reply("x", delay_s=600), Reply("y"))) as (server, client):
        with pytest.raises(anthropic.APITimeoutError):
            await client.with_options(timeout=0.2).messages.create(model=MODEL, max_tokens=5, messages=HELLO)
        await wait_until_async(lambda: server.model_calls()[0].fault == "client gone")
        assert server.model_calls()[0].status is None


async def test_a_server_can_be_started_again_and_keeps_its_log() -> None:
    server = ScriptedServer(script(Reply("x")))
    for number in (1, 2):
        async with server, AsyncAnthropic(api_key="k", base_url=server.base_url, max_retries=0) as client:
            await ask(client)
            assert len(server.requests) == number


async def test_a_taken_port_is_said_in_one_sentence() -> None:
    async with ScriptedServer(script()) as server:
        with pytest.raises(ModelUnreachable, match=f"cannot listen on 127.0.0.1:{server.port}"):
            async with ScriptedServer(script(), port=server.port):
                pass
        with pytest.raises(ModelUnreachable, match=r"^The scripted model server cannot listen"):
            ScriptedServer(script(), port=server.port).start_in_thread()


def test_a_thread_serves_callers_without_an_event_loop() -> None:
    port = free_port()
    with ScriptedServer(
        script(Reply("x", delay_s=0.01), Reply("y", delay_s=600)), port=port
    ).start_in_thread() as server:
        assert server.base_url == f"http://127.0.0.1:{port}"
        with anthropic.Anthropic(api_key="k", base_url=server.base_url, max_retries=0, timeout=20) as client:
            assert client.messages.create(model=MODEL, max_tokens=5, messages=HELLO).stop_reason == "end_turn"
        assert len(server.requests) == len(server.model_calls()) == 1
        assert "Scripted" in server.banner
    server.stop()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(server.base_url, trust_env=False)


# Every reply


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[ServerThread, dict[str, Reply]]]:
    replies: dict[str, Reply] = {}
    with ScriptedServer(FunctionBrain(lambda turn: replies[turn.first_text])).start_in_thread() as server:
        yield server, replies


WORDS = st.text(st.characters(codec="utf-8"), max_size=200)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.builds(Call, name=st.sampled_from(["shell", "give_up"]), input=st.dictionaries(WORDS, VALUES, max_size=3))
REPLIES = st.builds(
    Reply,
    text=WORDS,
    thinking=WORDS,
    calls=st.lists(CALLS, max_size=3).map(tuple),
    stop_reason=st.sampled_from([None, "max_tokens", "refusal", "pause_turn"]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=REPLIES)
def test_any_reply_is_the_same_with_and_without_a_stream(
    echo: tuple[ServerThread, dict[str, Reply]], reply: Reply
) -> None:
    server, replies = echo
    replies["this"] = reply
    messages: Any = [{"role": "user", "content": "this"}]
    with anthropic.Anthropic(api_key="k", base_url=server.base_url, max_retries=0, timeout=20) as client:
        whole = client.messages.create(model=MODEL, max_tokens=5, messages=messages)
        with client.messages.stream(model=MODEL, max_tokens=5, messages=messages) as events:
            streamed = events.get_final_message()
    wanted: list[dict[str, Any]] = [{"type": "thinking", "thinking": reply.thinking}] * bool(reply.thinking)
    wanted += [{"type": "text", "text": reply.text}] * bool(reply.text)
    wanted += [{"type": "tool_use", "name": call.name, "input": call.input} for call in reply.calls]
    for message in (whole, streamed):
        shown = [
            {
                key: value
                for key, value in block.to_dict().items()
                if key in ("type", "thinking", "text", "name", "input")
            }
            for block in message.content
        ]
        assert shown == wanted
        assert message.stop_reason == (reply.stop_reason or ("tool_use" if reply.calls else "end_turn"))
    assert streamed.usage.output_tokens == whole.usage.output_tokens
