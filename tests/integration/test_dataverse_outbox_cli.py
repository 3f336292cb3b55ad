"""``operator-dataverse outbox``: a person sees what waits and what was given up, and can let it go out again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import Delivered, Later, Letter, Never, Outcome, put
from operator_dataverse.cli import main


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "operator.db")


async def fill(store: str) -> None:
    async def deliver(letter: Letter) -> Outcome:
        answers: dict[str, Outcome] = {
            "a": Delivered(),
            "b": Never("a person \x1b[1mcanceled it"),
            "c": Later("busy", 900),
        }
        return answers[letter.kind]

    async with Database.open(store) as database:
        for kind, channel in (("a", "dataverse:1"), ("b", "dataverse:1"), ("c", "teams:1"), ("d", "slack:1")):
            async with database.begin() as c:
                await put(c, channel, kind, {}, dedupe_key=kind)
        for channels in ("dataverse:", "teams:"):
            await Courier(database, deliver, channels).drain(0.5)


async def test_what_waits_and_what_was_given_up_is_listed_and_can_go_again(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(store)

    async def call(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["--db", store, "outbox", *words])
        out, errors = capsys.readouterr()
        return code, out + errors

    code, said = await call("list", "--json")
    assert code == 0
    assert [(slip["kind"], slip["state"]) for slip in json.loads(said)] == [("c", "waiting"), ("b", "given up")]
    code, said = await call("list")
    assert code == 0
    assert "a person canceled it" in said
    assert "\x1b" not in said
    assert (await call("again", "2"))[0] == 0
    code, said = await call("list", "--json")
    assert [(slip["kind"], slip["state"]) for slip in json.loads(said)] == [("c", "waiting"), ("b", "waiting")]
    for wrong, words in (
        ("1", "has gone out"),
        ("99", "no letter 99"),
        ("0", "greater than or equal to 1"),
        ("x", "integer"),
    ):
        code, said = await call("again", wrong)
        assert code != 0
        assert words in said
        assert "Traceback" not in said
