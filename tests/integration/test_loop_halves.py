"""Half of a surrogate pair in a reply: it is replaced and said, and the conversation goes on."""

from __future__ import annotations

from pathlib import Path

from operator_core.agent_lab.halves import mend_reply
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, Reply, ScriptBrain
from tests.support.rig import command, open_rig

REPLIES = [
    Reply("half \ud83d of it", calls=(command("echo a \udc00 >made"), command("echo whole >whole"))),
    Reply("again \ud800", calls=(command("touch fixed"),)),
    Reply(calls=(Call("propose_resolution", {"summary": "It is there \udfff."}),)),
]


async def test_the_conversation_goes_on_and_nothing_altered_is_executed(tmp_path: Path, store_url: str) -> None:
    async with open_rig(ScriptBrain(REPLIES), tmp_path, store=store_url) as rig:
        ticket = await rig.solve()
        assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, "verified")
        assert len(rig.sent()) == len(REPLIES), "no request was lost"
        await rig.assert_faithful()
        (session,) = await rig.audit.sessions()
        entries = await rig.audit.entries(session.session_id)
    assert [line for line in rig.lines if line.startswith("[Note]")] == [
        "[Note] 2 character(s) of this reply were no text and were replaced.",
        "[Note] 1 character(s) of this reply were no text and were replaced.",
        "[Note] 1 character(s) of this reply were no text and were replaced.",
    ]
    replies = [e for e in entries if e.entry_type == EntryKind.MESSAGE and e.body["role"] == "assistant"]
    assert [e.meta.get("replaced") for e in replies if e.meta] == [2, 1, 1]
    results = {e.content: e.exit_code for e in entries if e.entry_type == EntryKind.TOOL_RESULT}
    refused = [said for said in results if "not executed: its arguments had half of a surrogate pair" in said]
    assert len(refused) == 1
    assert list(results.values()).count(0) >= 1, "the call beside it is executed as it was written"
    found = {path.name for path in (tmp_path).rglob("*") if path.name in ("made", "whole", "fixed")}
    assert found == {"whole", "fixed"}
    claimed = next(e for e in entries if e.entry_type == EntryKind.OUTCOME)
    assert claimed.raw_content == "It is there \ufffd."


def test_what_is_whole_stays_the_very_same_object() -> None:
    class Block:
        def __init__(self, **fields: object) -> None:
            self.__dict__ |= fields

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(self.__dict__.items())

    deep: object = "\udead"
    for _ in range(5000):
        deep = [deep]
    whole = {"a": ["\U0001f600", 1, None]}
    blocks = [
        Block(type="tool_use", id="one", name="shell", input=whole),
        Block(type="tool_use", id="two", name="shell", input={"k\ud800": deep, "x": whole}),
        Block(type="text", text="a\ud800\udfff b"),
    ]
    mended = mend_reply(Block(content=blocks))
    assert (mended.characters, mended.calls) == (4, frozenset({"two"}))
    assert blocks[0].input is whole  # type: ignore[attr-defined]
    assert list(blocks[1].input) == ["k\ufffd", "x"]  # type: ignore[attr-defined]
    assert blocks[2].text == "a\ufffd\ufffd b"  # type: ignore[attr-defined]
