"""What must hold of a session whatever killed its workers (``research/durable.md`` 5.1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from operator_core.agent_lab.history import fold
from operator_core.model.entry import Entry, EntryKind

__all__ = ["check_session"]


def check_session(entries: list[Entry], workspace: Path) -> Counter[str]:
    """The invariants of one finished session; returns how many calls had which status.

    Raises:
        AssertionError: One of them does not hold.
    """
    assert [e.seq for e in entries] == list(range(len(entries))), "the journal has holes"
    fences = [e.fence or 0 for e in entries]
    assert fences == sorted(fences), "an older owner wrote after a newer one"
    results = [e for e in entries if e.entry_type == EntryKind.TOOL_RESULT]
    by_id = {r.tool_use_id: r for r in results}
    asked = [
        block
        for message in fold(entries, "worker_1").messages
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    ids = [block["id"] for block in asked]
    assert len(results) == len(by_id) == len(ids), "each call has one result"
    assert set(by_id) == set(ids)
    calls = [e.tool_use_id for e in entries if e.entry_type == EntryKind.TOOL_CALL]
    assert sorted(str(c) for c in calls) == sorted(ids), "each call has one intent"
    statuses: Counter[str] = Counter()
    for block in asked:
        if block["name"] != "shell":
            continue
        result = by_id[block["id"]]
        status = (result.meta or {})["status"]
        name = block["input"]["command"].split()[3].rstrip(";")
        file = workspace / name
        effects = len(file.read_text().split()) if file.exists() else 0
        assert effects <= 1, f"EXECUTED TWICE: {name}"
        assert status in ("ok", "not_executed", "unknown")
        assert status != "ok" or effects == 1, f"a lie about {name}: ok, but there was no effect"
        assert status != "not_executed" or effects == 0, f"a lie about {name}: executed"
        if status == "unknown":
            assert "outcome unknown" in (result.raw_content or "")
        statuses[status] += 1
    kinds = Counter(e.entry_type for e in entries)
    for once in ("baseline", "session_start", "outcome", "verdict", "report", "session_end"):
        assert kinds[once] == 1, f"{kinds[once]} times {once}"
    return statuses
