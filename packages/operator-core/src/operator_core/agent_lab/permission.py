"""The last look at a call before it starts: do the rules allow it, and if a person must, has one?

A call that needs a person's word is not started, and neither is anything behind it in the same reply. The session then
rests; whoever goes on with it runs those calls in their order (:mod:`operator_core.agent_lab.held`), each exactly as
it was asked about, and only if the answer can be used at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from operator_core.agent_lab.gateway import ToolGateway, ToolRefused, unbroken
from operator_core.agent_lab.resting import AwaitingApproval
from operator_core.db.approvals import Approvals, Question, Taken
from operator_core.errors import TransitionRefused
from operator_core.failpoints import reach
from operator_core.model.approval import ApprovalRule
from operator_core.model.entry import Draft, EntryKind, canonical, too_deep
from operator_core.safety.approvals import Circumstances, Ruling, decide
from operator_core.text import clip, printable

__all__ = ["Permission"]

_NOT_NOW = "not executed: an earlier call of your reply waits for a person's word; make this one again"
_SECRET = (
    "not executed: this call needs a person's approval and holds something that looks like a secret, which is never "
    "stored while it waits; make the call without it"
)
_LONG = (
    "not executed: this call needs a person's approval and has more than {} characters, which nobody would read; make "
    "it shorter, or make several calls of it"
)
_DEEP = (
    "not executed: this call needs a person's approval and its arguments are nested so deeply that nobody could read "
    "them; make it flatter"
)
_NOBODY = "not executed: this call needs a person's approval, and in this session there is nobody to ask"
_LONGEST = 100_000
_AGAIN = "Do not try to reach the same in another way."


class Permission:
    """Rules and answers for the calls of one conversation.

    Args:
        rules: The first one that matches decides.
        circumstances: Of the conversation.
        tools: Names of the tools that do something.
        endings: Names of those that only say how the conversation ends; nobody is asked about them.
        expire_s: How long an answer is waited for, and how long it is good for.
        say: Prints one line for a person.
    """

    def __init__(
        self,
        rules: Sequence[ApprovalRule],
        circumstances: Circumstances,
        *,
        tools: Collection[str],
        endings: Collection[str] = (),
        expire_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._rules, self._circumstances = rules, circumstances
        self._tools, self._endings = frozenset(tools), frozenset(endings)
        self._expire_s, self._say = expire_s, say

    async def admit(self, gateway: ToolGateway, call_id: str, tool: str, arguments: dict[str, Any]) -> None:
        """Return if the call may start now.

        Raises:
            ToolRefused: It may not; ``gateway.waiting`` says whether the conversation has to rest.
        """
        if gateway.waiting is not None:
            raise ToolRefused(_NOT_NOW)
        held = gateway.conversation.held
        ruling = self._ruling(tool, arguments)
        if ruling.decision == "deny":
            raise ToolRefused(f"not executed: {ruling.why}. {_AGAIN}")
        if asked := held.get(call_id):
            await self._use(gateway, asked, call_id, tool, arguments)
        elif ruling.decision == "ask":
            await self._ask(gateway, call_id, tool, arguments, ruling.why)
        elif call_id in held:
            body = {"event": "let", "call": call_id, "place": gateway.place}
            text = "the call goes on, after the one before it was answered"
            await gateway.record(Draft(EntryKind.APPROVAL, text, tool_name=tool, tool_use_id=call_id, body=body))

    def _ruling(self, tool: str, arguments: dict[str, Any]) -> Ruling:
        if tool in self._endings:
            return Ruling("allow", "")
        return decide(self._rules, self._circumstances, tool, arguments)

    async def _ask(self, gateway: ToolGateway, call_id: str, tool: str, arguments: dict[str, Any], why: str) -> None:
        if gateway.journal.claim is None:
            raise ToolRefused(_NOBODY)
        if too_deep(arguments):
            raise ToolRefused(_DEEP)
        clean = gateway.journal.audit.database.redactor
        if clean.tree(arguments) != arguments:
            raise ToolRefused(_SECRET)
        if len(canonical(arguments)) > _LONGEST:
            raise ToolRefused(_LONG.format(_LONGEST))
        blocks = gateway.conversation.open_calls
        start = next((n for n, block in enumerate(blocks) if block["id"] == call_id), len(blocks))
        # What the journal masks cannot be executed from there.
        behind = [block for block in blocks[start + 1 :] if clean.tree(block["input"]) == block["input"]]
        questions = [Question(call_id, tool, arguments, why)]
        for block in behind:
            # Those that do not exist are refused when it is their turn.
            arguments = block["input"]
            known = block["name"] in self._tools and isinstance(arguments, dict)
            readable = len(canonical(arguments)) <= _LONGEST and not too_deep(arguments)
            if known and readable and (ruling := self._ruling(block["name"], arguments)).decision == "ask":
                questions.append(Question(block["id"], block["name"], arguments, ruling.why))
        reach("approval.ask.before")
        try:
            drafts = await unbroken(self._record(gateway, questions, [call_id, *(block["id"] for block in behind)]))
        except TransitionRefused as error:
            raise ToolRefused(f"not executed: {error}") from None
        reach("approval.ask.after")
        what = f"a call of {tool} ({clip(printable(why), 200)})"
        gateway.waiting = AwaitingApproval(str(drafts[0].body["approval"]), what)
        self._say(f"[Approval] {gateway.waiting}")
        raise ToolRefused(_NOT_NOW)

    async def _record(self, gateway: ToolGateway, questions: Sequence[Question], held: Sequence[str]) -> list[Draft]:
        approvals = Approvals(gateway.journal.audit.database)
        drafts = await approvals.ask(gateway.journal, questions, held, self._expire_s)
        for draft in drafts:
            gateway.conversation.add(EntryKind.APPROVAL, body=draft.body, tool_use_id=draft.tool_use_id)
        return drafts

    async def _use(
        self, gateway: ToolGateway, approval: str, call_id: str, tool: str, arguments: dict[str, Any]
    ) -> None:
        async def take() -> Taken:
            approvals = Approvals(gateway.journal.audit.database)
            found = await approvals.take(gateway.journal, approval, call_id, tool, arguments, gateway.place)
            if found.draft is not None:
                gateway.conversation.add(EntryKind.APPROVAL, body=found.draft.body, tool_use_id=call_id)
            return found

        reach("approval.take.before")
        taken = await unbroken(take())
        reach(f"approval.take.after:{taken.state}")
        if taken.state == "used":
            self._say(f"[Approval] {printable(taken.approval.answered_by or 'a person')} approved this call of {tool}.")
            return
        if taken.state == "pending":
            gateway.waiting = AwaitingApproval(approval, f"a call of {tool} ({clip(printable(taken.approval.why))})")
            raise ToolRefused(_NOT_NOW)
        raise ToolRefused(_told(gateway, taken))


def _told(gateway: ToolGateway, taken: Taken) -> str:
    """Why the call was not executed, for the model."""
    match taken.state:
        case "denied":
            note = f"\n{gateway.conversation.note(taken.approval.note)}" if taken.approval.note else ""
            return f"not executed: a person was asked about this call and denied it. {_AGAIN}{note}"
        case "expired":
            return f"not executed: nobody has approved this call in time ({taken.approval.why}). {_AGAIN}"
        case "canceled":
            return "not executed: a person has canceled the ticket"
        case "spent":
            return "not executed: the approval of this call was used before; make the call again to be asked again"
        case _:
            return "not executed: the approval was given for another call; make the call again to be asked again"
