"""Why a conversation rests: nothing of it runs any more, and it goes on from the journal, here or elsewhere."""

from __future__ import annotations

__all__ = ["AwaitingApproval", "Stopping"]


class Stopping(Exception):
    """The worker is about to leave: the conversation rests here and goes on from the journal."""


class AwaitingApproval(Stopping):
    """A call needs a person's word: the ticket waits for it, and the calls behind it wait too.

    Attributes:
        approval: Id of the question.
    """

    def __init__(self, approval: str, what: str) -> None:
        word = approval[:8]
        super().__init__(
            f"A person is asked to approve {what}; answer with `operator approvals approve {word}` or `operator "
            f"approvals deny {word} --note TEXT`."
        )
        self.approval = approval
