"""Network and credentials in whole sessions: every decision is in the journal, and no credential is anywhere."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from operator_core.config import Settings
from operator_core.db.integrity import verify
from operator_core.errors import ConfigError
from operator_core.model.entry import Entry
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.redaction import Redactor
from operator_core.sandbox import Policy
from operator_core.sandbox.bubblewrap.backend import BubblewrapSandbox
from operator_core.scripted import Call, Reply, ScriptBrain
from operator_core.work.boxes import check_network, learn_credentials, make_box, network_words
from operator_core.work.incident import IncidentSession
from operator_core.work.submit import submit_task
from tests.support.egress import Authority, Origin
from tests.support.processes import run_operator
from tests.support.rig import command, open_rig, spec_of
from tests.support.task_brain import done, run, task_brain, verdict

pytestmark = pytest.mark.usefixtures("require_bubblewrap")

TOKEN = "tok-canary-5f3c9e1b77"
FILE_TOKEN = "file-canary-0a9b8c7d6e"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> ssl.SSLContext:
    return authority.server("127.0.0.1")


def decisions(entries: list[Entry]) -> list[tuple[str, bool, str, str]]:
    return [
        (e.phase or "", e.body["allowed"], e.body["method"], e.body["credential"])
        for e in entries
        if e.entry_type == "egress"
    ]


def tell_it(head: bytes, body: bytes) -> bytes:
    """A host that says who asked, with the credential in it."""
    line = next((x for x in head.split(b"\r\n") if x.lower().startswith(b"authorization:")), b"nobody")
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(line), line)


async def assert_nowhere(folder: Path, entries: list[Entry], sent: Any, *secrets: str) -> None:
    for secret in secrets:
        assert secret not in json.dumps([e.body for e in entries]) + json.dumps([e.raw_content for e in entries])
        assert secret not in json.dumps(sent)
        for path in (*folder.glob("operator.db*"), *folder.glob("state/**/*"), *folder.glob("Operator Sessions/**/*")):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


async def test_a_task_with_network_and_credentials(
    tmp_path: Path, authority: Authority, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("FORGE_SETTING", TOKEN)  # a name from which nobody would guess what it holds
    (tmp_path / "token").write_text(f"{FILE_TOKEN}\n")
    async with Origin() as origin, Origin(tell_it, tls=server_tls) as forge:
        worker = (
            run(
                f"curl -sS http://127.0.0.1:{origin.port}/ > hello; curl -sS http://evil.example/; env",
                f"curl -sS http://127.0.0.1:{forge.port}/me; curl -sS http://127.0.0.1:{forge.port}/me | base64",
                "cat /run/secrets/deploy; cat /proc/*/environ",
            ),
            done(),
        )
        look = "python3 -c 'print(open(\"hello\").read())'; base64 /run/secrets/deploy; cat /run/secrets/deploy"
        verifier = (run(look), verdict(True))
        brain = task_brain(worker, verifier)
        credentials = [
            {"name": "forge", "env": "FORGE_SETTING", "hosts": [f"127.0.0.1:{forge.port}"]},
            {"name": "deploy", "file": str(tmp_path / "token"), "phases": ["verifier", "checks"]},
        ]
        async with open_rig(
            brain,
            tmp_path,
            tasks={"root": tmp_path},
            sandbox={"backend": "bubblewrap", "allow_hosts": ["example.org"]},
            credential=credentials,
        ) as rig:
            size = len(FILE_TOKEN) + 1
            check = TaskCheck(command=f"test $(cat hello) = hello && test $(wc -c < /run/secrets/deploy) = {size}")
            task = TaskSpec(
                name="fetch",
                prompt="Fetch it.",
                checks=(check,),
                network="allowlist",
                allow_hosts=(f"127.0.0.1:{origin.port}",),
            )
            ticket = await rig.tickets.submit_task(task)
            await rig.work()
            ticket = await rig.tickets.get_ticket(ticket.id or 0)
            assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, Reason.VERIFIED), ticket.diagnosis
            entries = await rig.journal(ticket.id or 0)
            assert (await verify(rig.database)).ok
            lines = "\n".join(rig.lines)
            sent = [r.body for r in rig.server.model_calls(rig.settings.model.model)]
    assert decisions(entries) == [
        ("worker_1", True, "GET", ""),
        ("worker_1", False, "GET", ""),
        ("worker_1", True, "GET", "forge"),
        ("worker_1", True, "GET", "forge"),
    ]
    assert [head.split(b"Authorization: ")[1].split(b"\r\n")[0] for head in forge.heads] == [
        f"Bearer {TOKEN}".encode()
    ] * 2
    said = "".join(e.raw_content or "" for e in entries if e.entry_type == "tool_result")
    assert "authorization: bearer [redacted]" in said.lower()
    assert "No such file" in said, "the worker's phase has no secret file"
    text = json.dumps(sent)
    assert f"commands reach example.org, 127.0.0.1:{origin.port}, and nothing else" in text
    assert f"Credential forge: ask 127.0.0.1:{forge.port} by plain" in text
    assert "The file /run/secrets/deploy holds a secret" in text
    worker_text = json.dumps([body for body in sent if body and "report_done" in json.dumps(body["tools"])])
    assert "/run/secrets/deploy holds" not in worker_text
    await assert_nowhere(tmp_path, entries, sent, TOKEN, FILE_TOKEN)
    assert TOKEN not in lines
    assert FILE_TOKEN not in lines


async def test_an_incident_with_an_allow_list(tmp_path: Path) -> None:
    async with Origin() as origin:
        calls = (
            command(f"curl -sS http://127.0.0.1:{origin.port}/ && touch fixed"),
            command("curl -sS https://evil.example/"),
        )
        brain = ScriptBrain([Reply(calls=calls), Reply(calls=(Call("propose_resolution", {"summary": "fetched"}),))])
        check = spec_of(tmp_path / "workspace")
        subject = check.subject.model_copy(
            update={"network": "allowlist", "allow_hosts": (f"127.0.0.1:{origin.port}",)}
        )
        async with open_rig(brain, tmp_path, sandbox={"backend": "bubblewrap"}) as rig:
            ticket = await rig.solve(type(check).of(subject, check.invariant))
            assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
            entries = await rig.journal()
            await rig.assert_faithful()
    assert decisions(entries) == [("worker_1", True, "GET", ""), ("worker_1", False, "CONNECT", "")]
    shown = [e.content for e in entries if e.entry_type == "egress"]
    assert shown[1] == "refused: CONNECT evil.example:443: evil.example:443 is not among the allowed hosts."


async def test_a_worker_that_has_lost_its_ticket_lets_nothing_out(tmp_path: Path) -> None:
    """The decision cannot be written any more, so it cannot be carried out."""
    async with (
        Origin() as origin,
        open_rig(ScriptBrain([Reply(text="x")]), tmp_path, sandbox={"backend": "bubblewrap"}) as rig,
        rig.tools() as tools,
    ):
        number = await rig.incident()
        await tools.queue.register("me", 30.0, "me")
        (claim,) = await tools.queue.claim("me")
        assert claim.ticket.id == number
        session = IncidentSession(tools, claim)
        await session.open_journal()
        policy = Policy(rig.workspace, network="allowlist", allow_hosts=(f"127.0.0.1:{origin.port}",))
        box = session.box(policy, "worker_1")
        try:
            await box.start()
            fetch = f"curl -sS http://127.0.0.1:{origin.port}/"
            assert (await box.exec(fetch)).stdout.text() == "hello"
            await tools.queue.retire("me")
            await tools.queue.reap()
            assert "could not be written to the journal" in (await box.exec(fetch)).stdout.text()
        finally:
            await box.close()
    assert origin.connections == 1


# ---- what is refused before anything runs


@pytest.mark.parametrize(
    ("policy", "credential", "words"),
    [
        ({"env": {"X": "a tok-canary-5f3c9e1b77 b"}}, {"env": "FORGE_SETTING"}, "The variable `X`"),
        ({"env": {"FORGE_SETTING": "x"}}, {"env": "FORGE_SETTING"}, "The variable `FORGE_SETTING`"),
        ({}, {"file": "workspace/token"}, "in a folder that the agent sees"),
        ({}, {"file": "missing", "phases": ["worker"]}, "is not there"),
    ],
)
async def test_a_credential_that_commands_could_see_stops_the_session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: dict[str, Any],
    credential: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setenv("FORGE_SETTING", TOKEN)
    if "file" in credential:
        credential = {**credential, "file": str(tmp_path / credential["file"])}
    given = [{"name": "forge", "hosts": ["example.org"], **credential}]
    brain = ScriptBrain([Reply(calls=(command("touch fixed"),))])
    check = spec_of(tmp_path / "workspace")
    subject = check.subject.model_copy(update={"env": policy.get("env", {})})
    async with open_rig(brain, tmp_path, sandbox={"backend": "bubblewrap"}, credential=given) as rig:
        (rig.workspace / "token").write_text(FILE_TOKEN)
        ticket = await rig.solve(type(check).of(subject, check.invariant))
    assert ticket.status is TicketStatus.ESCALATED
    assert words in (ticket.diagnosis or "")
    assert TOKEN not in (ticket.diagnosis or "")


async def test_hosts_are_checked_when_a_task_is_submitted(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(text="x")]), tmp_path) as rig:
        ticket = await submit_task(
            rig.database,
            rig.settings,
            "Fetch it.",
            network="allowlist",
            allow_hosts=["*.Example.ORG.:443", "a.example"],
        )
        spec = TaskSpec.model_validate(ticket.check_spec)
        assert (spec.network, spec.allow_hosts) == ("allowlist", ("*.example.org:443", "a.example"))
        with pytest.raises(ConfigError, match="localhost"):
            await submit_task(rig.database, rig.settings, "x", network="allowlist", allow_hosts=["localhost:80"])


def test_configured_hosts_are_checked_before_anybody_relies_on_them() -> None:
    for section in (
        {"sandbox": {"allow_hosts": ["*"]}},
        {"subject": [{"name": "a", "allow_hosts": ["http://x/"]}]},
        {"credential": [{"name": "a", "env": "X", "hosts": ["example.org:80"]}]},
    ):
        with pytest.raises(ConfigError):
            check_network(Settings.model_validate(section))
    check_network(Settings.model_validate({"sandbox": {"allow_hosts": ["example.org"]}}))


def test_credentials_are_learned_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine forge.example\n  password abcdefghij-0123456789\n")
    settings = Settings.model_validate(
        {"credential": [
            {"name": "netrc", "file": str(tmp_path / "netrc"), "phases": ["worker"]},
            {"name": "gone", "file": str(tmp_path / "gone"), "phases": ["worker"]},
        ]}
    )  # fmt: skip
    redactor = Redactor()
    learn_credentials(redactor, settings)
    assert redactor.text("x password abcdefghij-0123456789 y") == "x [REDACTED] y"


def test_the_command_line_allows_hosts(tmp_path: Path) -> None:
    db = tmp_path / "operator.db"
    done_ = run_operator(
        "submit", "Fetch it.", "--allow-host", "A.example", "--allow-host", "*.b.example:81", "--json", db=db
    )
    assert done_.returncode == 0, done_.stderr
    spec = json.loads(done_.stdout)["check_spec"]
    assert (spec["network"], spec["allow_hosts"]) == ("allowlist", ["a.example", "*.b.example:81"])
    for words in (
        ("--network", "none", "--allow-host", "a.example"),
        ("--network", "allowlist"),
        ("--allow-host", "*"),
    ):
        refused = run_operator("submit", "Fetch it.", *words, db=db)
        assert refused.returncode == 2
        assert refused.stderr.startswith("Error: ")
        assert refused.stderr.count("\n") == 1


def test_an_agent_is_told_what_it_has(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"credential": [
            {"name": "forge", "env": "X", "hosts": ["api.example"], "header": "X-Key"},
            {"name": "deploy", "file": str(tmp_path / "f"), "phases": ["checks"]},
        ]}
    )  # fmt: skip
    listed = Policy(tmp_path, network="allowlist", allow_hosts=("a.example", "127.0.0.1:81"))
    worker, checks = network_words(settings, listed, "worker_1"), network_words(settings, listed, "checks")
    assert "reach a.example, 127.0.0.1:81, and nothing else" in worker[0]
    assert "`localhost`" in worker[1]
    assert worker[2].startswith(
        "Credential forge: ask api.example by plain `http://HOST/...`; the proxy adds the header X-Key"
    )
    assert checks[3:] == ["The file /run/secrets/deploy holds a secret; use it there and show it nowhere."]
    assert len(worker) == 3
    assert network_words(settings, Policy(tmp_path), "worker_1") == []
    assert network_words(settings, Policy(tmp_path, network="host"), "worker_1") == []
    bare = settings.model_copy(update={"sandbox": settings.sandbox.model_copy(update={"backend": "none"})})
    assert "Nothing enforces that here" in network_words(bare, listed, "worker_1")[0]
    assert len(network_words(bare, listed, "worker_1")) == 1


def test_a_credential_is_known_to_the_redactor_whenever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace").mkdir()
    monkeypatch.setenv("FORGE_SETTING", TOKEN)
    settings = Settings.model_validate(
        {
            "sandbox": {"backend": "bubblewrap"},
            "credential": [{"name": "forge", "env": "FORGE_SETTING", "hosts": ["example.org"]}],
        }
    )
    redactor = Redactor()

    async def no_journal() -> Any:
        raise AssertionError

    box = make_box(
        settings,
        Policy(tmp_path / "workspace"),
        session_dir=tmp_path / "session",
        redactor=redactor,
        phase="worker_1",
        journal=no_journal,
    )
    assert redactor.text(f"x {TOKEN}") == "x [REDACTED]"
    monkeypatch.setenv("FORGE_SETTING", "tok-rotated-0123456789")
    assert isinstance(box, BubblewrapSandbox)
    assert box.options.secrets[0].read() == "tok-rotated-0123456789"
    assert redactor.text(b"tok-rotated-0123456789".hex()) == "[REDACTED]"
