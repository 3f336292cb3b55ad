"""A canary secret comes in by every door, and is found nowhere (issue 2, Quality)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from operator_core.agent_lab.audit import SessionAuditor
from operator_core.model.ticket import TicketStatus
from operator_core.redaction import Redactor
from operator_core.scripted import Call, Reply, ScriptBrain
from tests.support.rig import command, open_rig, spec_of

CANARY = "canary-7f3a91c2d4e8b650"
SHAPED = "sk-ant-api03-CANARYCANARYCANARYCANARY"
HALF = len(CANARY) // 2


@pytest.fixture(params=["none", "bubblewrap"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    return str(request.param)


async def test_shortening_does_not_save_half_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", CANARY)
    # Cut where one-line summaries are cut, in the middle of the secret.
    reply = Reply(
        text="t" * (199 - HALF) + CANARY,
        calls=(
            command("touch fixed; true " + "c" * (59 - 18 - HALF) + CANARY),
            Call("propose_resolution", {"summary": "s" * (199 - HALF) + CANARY}),
        ),
    )
    async with open_rig(ScriptBrain([reply]), tmp_path, redactor=Redactor.from_environment()) as rig:
        await rig.solve()
        lines = list(rig.lines)
    beginning = CANARY[: HALF - 1]
    assert [line for line in lines if beginning in line] == []
    for path in (*tmp_path.glob("operator.db*"), *tmp_path.glob("state/**/*")):
        assert path.is_dir() or beginning.encode() not in path.read_bytes(), path


async def test_the_canary_is_found_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("DEPLOY_TOKEN", CANARY)
    a, b = CANARY[:HALF], CANARY[HALF:]
    calls = (
        command("env; cat /proc/self/environ"),
        # In two writes, with time between them; then in the middle of so much that it goes into a blob.
        command(f"printf '%s' '{a}'; sleep 0.3; printf '%s\\n' '{b}'; echo {CANARY} >&2; exit 3"),
        command(f"head -c 3000000 /dev/zero | tr '\\0' x; echo {a}\"\"{b}; head -c 3000000 /dev/zero | tr '\\0' y"),
        command(f"echo {CANARY}; sleep 30", timeout=0.5),
        command(f"echo {SHAPED}; touch fixed"),
        Call(f"tool-{CANARY}", {"x": CANARY}),
    )
    steps = [
        Reply(text=f"I have seen {CANARY} and {SHAPED}, which I should not repeat, but I do so here.", calls=calls),
        Reply(calls=(Call("propose_resolution", {"summary": f"rotated {CANARY}"}),)),
    ]
    check = spec_of(
        tmp_path / "workspace",
        probe="cat leak; test -e fixed",
        verify=("cat leak",),
        protect={"commands": ("cat leak leak",), "files": ("leak",)},
    )
    audit = tmp_path / "audit"
    brain = ScriptBrain(steps)
    async with open_rig(brain, tmp_path, sandbox={"backend": backend}, redactor=Redactor.from_environment()) as rig:
        (rig.workspace / "leak").write_text(f"password={CANARY}\n")
        number = await rig.incident(check, message=f"login with {CANARY} failed")
        await rig.tickets.send(number, f"try {CANARY}")
        await rig.work(audit_dir=audit)
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.status is TicketStatus.RESOLVED
        assert ticket.diagnosis == "rotated [REDACTED]"
        report = rig.conclusions[0].report
        entries = await rig.journal()
        blobs = [v for e in entries for k, v in (e.meta or {}).items() if k.endswith("_blob")]
        assert blobs
        for digest in blobs:
            data = b"".join([chunk async for chunk in rig.audit.read_blob(digest)])
            assert CANARY.encode() not in data
            assert b"[REDACTED]" in data
        SessionAuditor.from_entries(tmp_path / "export", "export", entries).save_session()
        lines = list(rig.lines)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "workspace" not in path.parts:
            data = path.read_bytes()
            assert CANARY.encode() not in data, path
            assert SHAPED.encode() not in data, path
    assert len(list(audit.glob("*.json"))) == 1
    assert CANARY not in caplog.text
    assert [line for line in lines if CANARY in line or SHAPED in line] == []
    assert CANARY not in report.markdown()
