"""What the agent reads when something does not pass: what, why, and who can change it."""

from __future__ import annotations

from operator_core.sandbox.egress.rules import Rules
from operator_core.sandbox.options import Decision
from operator_core.text import clip

__all__ = ["Refused", "answer"]


class Refused(Exception):
    """A request that must not leave.

    Args:
        decision: With one sentence that says why.
        status: For the answer.
    """

    def __init__(self, decision: Decision, status: int = 403) -> None:
        super().__init__(decision.why)
        self.decision = decision
        self.status = status

    def answer(self, rules: Rules) -> bytes:
        """The answer for the agent."""
        decision = self.decision
        where = _where(decision)
        lines = [
            "The egress proxy of this sandbox refused the request, and nothing was sent.",
            f"What: {decision.method} {where}" if decision.host else "",
            f"Why: {decision.why}",
        ]
        if self.status == 403:
            lines += [f"Allowed: {rules.words()}.", _remedy(decision)]
        return _answer(self.status, decision.why, "\n".join(filter(None, lines)))


def _where(decision: Decision) -> str:
    return f"[{decision.host}]:{decision.port}" if ":" in decision.host else f"{decision.host}:{decision.port}"


def _remedy(decision: Decision) -> str:
    what = "by naming the address itself with its port" if decision.addresses else f"as `{_where(decision)}`"
    return (
        f"Nothing that runs in here can change that. A person can, {what}: in `allow_hosts` of the system or of "
        "[sandbox] in operator.toml, or with `operator submit --allow-host`."
    )


def answer(status: int, why: str) -> bytes:
    """The answer to something that could not be done.

    Args:
        why: A clause.
    """
    return _answer(status, why, f"The egress proxy of this sandbox did not pass the request: {why}.")


def _answer(status: int, why: str, text: str) -> bytes:
    body = f"{text}\n".encode("ascii", "replace")
    # Many programs show this one line and nothing else.
    reason = clip(why.rstrip("."), 160).encode("ascii", "replace").decode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "X-Operator-Egress: refused\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
