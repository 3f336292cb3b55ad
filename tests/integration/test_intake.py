"""Webhooks become tickets: once, as a whole or not at all, and a message never decides what only a proof decides."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from operator_core import clock
from operator_core.config import Settings, load_settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.ledger import LedgerRow, ticket_history
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.errors import IntakeRefused, StoreError
from operator_core.intake.items import MAX_ITEMS, Receipt
from operator_core.intake.reception import Reception
from operator_core.model.invariant import CheckSpec
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Reason, Ticket, TicketKind, TicketStatus
from tests.support.webhooks import SAMPLES, SECRETS, alerts, bearer, from_github, sample, signed


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Database]:
    async with Database.open(store_url) as database:
        yield database


@pytest.fixture
def settings() -> Settings:
    subject = {
        "name": "shop",
        "context": "The shop answers on port 8080.",
        "invariant": [{"name": "shop-answers", "probe": {"type": "http", "url": "http://127.0.0.1:1/"}, "watch_s": 60}],
    }
    examples = load_settings(SAMPLES / "operator.toml", environ={}).settings
    return examples.model_copy(update={"subject": Settings.model_validate({"subject": [subject]}).subject})


@pytest.fixture
def reception(store: Database, settings: Settings) -> Reception:
    return Reception(store, settings, environ=SECRETS)


async def tickets_of(store: Database) -> list[Ticket]:
    return sorted(await TicketDB(store).list_tickets(), key=lambda t: t.id or 0)


async def history(store: Database, ticket_id: int | None) -> list[LedgerRow]:
    assert ticket_id is not None
    return await ticket_history(store, ticket_id)


async def fire(reception: Reception, *changes: dict[str, Any], **group: Any) -> list[str]:
    receipt = await reception.receive("alerts", bearer(), alerts(*changes, **group))
    return [item.what for item in receipt.items]


async def refused(reception: Reception, name: str, headers: dict[str, str], body: bytes) -> IntakeRefused:
    with pytest.raises(IntakeRefused) as caught:
        await reception.receive(name, headers, body)
    assert "\n" not in str(caught.value)
    return caught.value


# ---- alerts


async def test_each_alert_of_a_group_becomes_one_incident(reception: Reception, store: Database) -> None:
    body = (SAMPLES / "alertmanager-firing.json").read_bytes()
    receipt = await reception.receive("alerts", bearer(), body)
    one, two = await tickets_of(store)
    assert [(item.what, item.ticket_id) for item in receipt.items] == [("opened", one.id), ("opened", two.id)]
    assert one.batch_key == two.batch_key is not None
    assert (one.invariant_name, one.severity, one.status, one.kind) == (
        "ServiceUnreachable",
        "critical",
        TicketStatus.OPEN,
        TicketKind.INCIDENT,
    )
    assert one.violation_key == "ServiceUnreachable:alerts/3a1f8c55d2b94e07"
    assert one.message.splitlines() == [
        "The shop does not answer on shop-1",
        "Three probes in a row ended without an answer.",
        "Runbook: https://runbooks.example.com/service-unreachable",
    ]
    assert one.first_seen_at == clock.parse_iso("2026-01-28T09:30:45.123456+00:00")
    assert one.labels["team"] == "shop"
    assert one.metric_snapshot is not None
    assert one.metric_snapshot["alert"]["labels"]["instance"] == "shop-1.example.com:8080"
    assert one.check_spec is None
    (opened,) = await history(store, one.id)
    assert (opened.kind, opened.body["actor"], opened.body["new"]) == ("transition", "alerts (intake)", "open")


async def test_the_same_alert_again_changes_nothing(reception: Reception, store: Database) -> None:
    assert await fire(reception) == ["opened"]
    (before,) = await tickets_of(store)
    rows = await history(store, before.id)
    for _ in range(3):
        assert await fire(reception) == ["seen"]
    (after,) = await tickets_of(store)
    assert after.occurrence_count == 1
    assert after.last_seen_at > before.last_seen_at
    assert await history(store, before.id) == rows


async def test_a_new_episode_of_an_open_incident_is_counted(reception: Reception, store: Database) -> None:
    await fire(reception)
    assert await fire(reception, {"startsAt": "2026-01-28T12:00:00Z"}) == ["counted"]
    (ticket,) = await tickets_of(store)
    assert ticket.occurrence_count == 2


async def test_a_resolved_alert_is_noted_and_resolves_nothing(reception: Reception, store: Database) -> None:
    await reception.receive("alerts", bearer(), (SAMPLES / "alertmanager-firing.json").read_bytes())
    body = (SAMPLES / "alertmanager-resolved.json").read_bytes()
    before = await tickets_of(store)
    for what in ("observed", "seen", "seen"):
        receipt = await reception.receive("alerts", bearer(), body)
        assert [item.what for item in receipt.items] == [what, what]
    assert await tickets_of(store) == before, "nothing about a ticket changes"
    for ticket in before:
        _, note = await history(store, ticket.id)
        assert (note.kind, note.body["saw"], note.body["actor"]) == ("observation", "resolved", "alerts (intake)")
        assert note.body["detail"]["ended_at"].startswith("2026-01-28T09:4")
    assert (await verify(store)).ok


async def test_what_resolves_without_a_ticket_is_ignored(reception: Reception, store: Database) -> None:
    receipt = await reception.receive("alerts", bearer(), (SAMPLES / "alertmanager-resolved.json").read_bytes())
    assert [item.what for item in receipt.items] == ["ignored", "ignored"]
    assert await tickets_of(store) == []


async def test_an_alert_that_names_an_invariant_can_be_proved(
    reception: Reception, store: Database, settings: Settings
) -> None:
    await fire(
        reception,
        {"labels": {"operator_invariant": "shop-answers"}},
        {"fingerprint": "b" * 16, "annotations": {"operator_invariant": "shop-answers"}},
    )
    for ticket in await tickets_of(store):
        (subject,) = settings.subject
        assert CheckSpec.model_validate(ticket.check_spec) == CheckSpec.of(subject, subject.invariant[0])
        assert ticket.check_hash == CheckSpec.of(subject, subject.invariant[0]).digest
        assert ticket.subject_context == "The shop answers on port 8080."


async def test_an_unknown_invariant_is_said_and_proves_nothing(reception: Reception, store: Database) -> None:
    body = alerts({"labels": {"operator_invariant": "gone"}})
    receipt = await reception.receive("alerts", bearer(), body)
    assert "'gone' is not configured" in str(receipt.items[0].note)
    (ticket,) = await tickets_of(store)
    assert ticket.check_spec is None


async def test_of_many_labels_the_first_by_name_are_kept_and_the_ticket_says_so(
    reception: Reception, store: Database
) -> None:
    many = {f"l{n:03}": "x" for n in reversed(range(70))} | {"alertname": "crowded"}
    receipt = await reception.receive("alerts", bearer(), alerts({"labels": many}))
    assert receipt.items[0].note == "10 label(s) were left out; the first 64 by name are kept.", "70 and the usual four"
    (ticket,) = await tickets_of(store)
    assert ticket.invariant_name == "crowded"
    assert (len(ticket.labels), list(ticket.labels)) == (64, sorted(ticket.labels))
    assert ("alertname" in ticket.labels, "l061" in ticket.labels, "team" in ticket.labels) == (True, True, False)
    assert ticket.metric_snapshot["alert"]["labels_left_out"] == receipt.items[0].note


async def end(store: Database, status: TicketStatus, watch_s: float = 0.0) -> None:
    """A worker takes the only ticket and ends it."""
    queue, worker = WorkQueue(store), clock.new_id()
    await queue.register(worker, 60)
    (claim,) = await queue.claim(worker)
    session_id = await AuditLogDB(store).create_session(claim.ticket_id, claim=claim)
    resolved = status is TicketStatus.RESOLVED
    await queue.finish(
        claim,
        status,
        Reason.VERIFIED if resolved else Reason.GAVE_UP,
        diagnosis="found",
        session_id=session_id,
        session_status="completed" if resolved else "escalated",
        watch_s=watch_s,
    )


async def test_an_alert_that_lags_behind_a_proved_repair_reopens_nothing(reception: Reception, store: Database) -> None:
    await fire(reception)
    await end(store, TicketStatus.RESOLVED, watch_s=600)
    assert await fire(reception) == ["stands"], "old news"
    (ticket,) = await tickets_of(store)
    assert ticket.status is TicketStatus.RESOLVED
    assert await fire(reception, {"startsAt": clock.iso()}) == ["reopened"], "it fires anew"
    (ticket,) = await tickets_of(store)
    assert (ticket.status, ticket.reason, ticket.reopen_count) == (TicketStatus.OPEN, "recurred", 1)


async def test_an_alert_that_outlasts_the_watch_period_opens_a_ticket(reception: Reception, store: Database) -> None:
    await fire(reception)
    await end(store, TicketStatus.RESOLVED)
    assert await fire(reception) == ["opened"]
    assert [t.status for t in await tickets_of(store)] == [TicketStatus.RESOLVED, TicketStatus.OPEN]


async def test_what_a_person_decided_about_this_episode_stands(reception: Reception, store: Database) -> None:
    await fire(reception)
    await TicketDB(store).cancel_ticket(1)
    assert await fire(reception) == ["stands"]
    assert await fire(reception, {"startsAt": clock.iso(clock.now() + timedelta(seconds=1))}) == ["opened"]
    assert len(await tickets_of(store)) == 2


async def test_an_escalated_incident_stays_so_however_often_it_fires(reception: Reception, store: Database) -> None:
    await fire(reception)
    await end(store, TicketStatus.ESCALATED)
    assert await fire(reception) == ["seen"]
    assert await fire(reception, {"startsAt": "2026-01-28T12:00:00Z"}) == ["counted"]
    (ticket,) = await tickets_of(store)
    assert ticket.status is TicketStatus.ESCALATED


async def test_a_clock_that_goes_wrong_is_bounded(reception: Reception, store: Database) -> None:
    await fire(
        reception, {"startsAt": "2999-01-01T00:00:00Z"}, {"startsAt": "0001-01-01T00:00:00Z", "fingerprint": "f"}
    )
    future, past = await tickets_of(store)
    assert future.first_seen_at <= clock.now()
    assert past.first_seen_at.year == 1971


async def test_one_bad_alert_refuses_its_group(reception: Reception, store: Database) -> None:
    bad: dict[str, Any]
    for bad in (
        {"status": "odd"},
        {"startsAt": "yesterday"},
        {"startsAt": None},
        {"labels": {"a": 1}},
        {"annotations": []},
        {"startsAt": "0001-01-01T00:00:00+14:00"},
    ):
        error = await refused(reception, "alerts", bearer(), alerts({}, {"fingerprint": "f" * 16, **bad}))
        assert error.status == 422
        assert "nothing of it was taken" in str(error)
    assert await tickets_of(store) == []


async def test_a_group_that_the_store_cannot_write_leaves_nothing(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "operator.db"
    async with Database.open(file) as store:
        with closing(sqlite3.connect(file)) as c:
            c.execute(
                "CREATE TRIGGER third BEFORE INSERT ON tickets WHEN (SELECT count(*) FROM tickets) >= 2 "
                "BEGIN SELECT RAISE(ABORT, 'no more'); END"
            )
        reception = Reception(store, settings, environ=SECRETS)
        group = alerts(*({"fingerprint": f"{n:016x}"} for n in range(3)))
        with pytest.raises(StoreError):
            await reception.receive("alerts", bearer(), group)
        assert await tickets_of(store) == []
        with closing(sqlite3.connect(file)) as c:
            assert c.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
            assert c.execute("SELECT count(*) FROM work_links").fetchone() == (0,)
            c.execute("DROP TRIGGER third")
        receipt = await reception.receive("alerts", bearer(), group)
        assert [item.what for item in receipt.items] == ["opened"] * 3, "the sender's second try"


async def test_deliveries_at_the_same_time_open_one_incident_each(reception: Reception, store: Database) -> None:
    there = alerts(*({"fingerprint": f"{n:016x}"} for n in range(6)))
    back = alerts(*({"fingerprint": f"{n:016x}"} for n in reversed(range(6))))
    receipts = await asyncio.gather(*(reception.receive("alerts", bearer(), body) for body in [there, back] * 4))
    said = [item.what for receipt in receipts for item in receipt.items]
    assert (said.count("opened"), said.count("seen")) == (6, 42)
    assert len(await tickets_of(store)) == 6
    assert (await verify(store)).ok


async def test_a_group_may_be_too_large(reception: Reception, store: Database) -> None:
    error = await refused(
        reception, "alerts", bearer(), alerts(*({"fingerprint": f"{n:x}"} for n in range(MAX_ITEMS + 1)))
    )
    assert error.status == 413
    assert "max_alerts" in str(error)
    assert await tickets_of(store) == []


async def test_an_alert_twice_in_a_group_is_one(reception: Reception, store: Database) -> None:
    assert await fire(reception, {}, {}, {"status": "resolved"}) == ["opened"]
    assert len(await tickets_of(store)) == 1


async def test_alerts_without_fingerprints_are_told_apart_by_their_labels(
    reception: Reception, store: Database
) -> None:
    one, two = {"fingerprint": "", "labels": {"a": "1"}}, {"fingerprint": "", "labels": {"a": "2"}}
    assert await fire(reception, one, two) == ["opened", "opened"]
    assert await fire(reception, one) == ["seen"]


async def test_text_of_an_alert_is_bounded_and_without_secrets(reception: Reception, store: Database) -> None:
    await fire(
        reception,
        {
            "labels": {"alertname": "a\x1b[31mred\n" + "x" * 500, "key": "sk-ant-api03-" + "x" * 40, "nul": "a\0b"},
            "annotations": {"summary": "s" * 100_000, **{f"a{n}": "x" * 9000 for n in range(100)}},
        },
        truncatedAlerts=7,
    )
    (ticket,) = await tickets_of(store)
    assert ticket.invariant_name.startswith("ared xxx")
    assert len(ticket.invariant_name) == 120
    assert len(ticket.message) == 8000
    assert ticket.labels["key"] == "[REDACTED]"
    assert len(json.dumps(ticket.metric_snapshot)) < 100_000


async def test_grafana_sends_the_same_with_another_version(reception: Reception) -> None:
    extra = {"values": {"B": 44.2}, "silenceURL": "https://grafana.example.com/silence", "panelURL": ""}
    assert await fire(reception, extra, version="1", orgId=1, title="[FIRING:1]", message="m") == ["opened"]
    error = await refused(reception, "alerts", bearer(), alerts(version="5"))
    assert "Version '5'" in str(error)


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong" * 5), {"Authorization": "Basic x"}, {"X-Hub-Signature-256": "x"}]
)
async def test_who_does_not_know_the_secret_is_refused(
    reception: Reception, store: Database, headers: dict[str, str]
) -> None:
    assert (await refused(reception, "alerts", headers, alerts())).status == 401
    assert await tickets_of(store) == []


async def test_a_door_that_is_not_there(reception: Reception) -> None:
    assert (await refused(reception, "Alerts", bearer(), alerts())).status == 404


async def test_a_door_without_its_secret(store: Database, settings: Settings) -> None:
    assert (await refused(Reception(store, settings, environ={}), "alerts", bearer(""), alerts())).status == 503


# ---- signed webhooks


def builds(**changes: Any) -> bytes:
    document = sample("build-failed")
    document["builds"][0] |= changes
    return json.dumps(document).encode()


async def test_a_webhook_becomes_incidents_as_configured(reception: Reception, store: Database) -> None:
    body = (SAMPLES / "build-failed.json").read_bytes()
    receipt = await reception.receive("builds", signed(body), body)
    assert [item.what for item in receipt.items] == ["opened", "ignored"]
    (ticket,) = await tickets_of(store)
    assert ticket.invariant_name == "build-shop"
    assert ticket.message == "Build 8812 of shop on main failed: 2 of 310 tests failed"
    assert ticket.violation_key == "build-shop:builds/shop/main"
    assert (ticket.severity, ticket.labels) == ("critical", {"team": "checkout"})


async def test_a_message_that_it_is_over_is_only_noted(reception: Reception, store: Database) -> None:
    await reception.receive("builds", signed(builds()), builds())
    again = builds(status="passed")
    receipt = await reception.receive("builds", signed(again), again)
    assert [item.what for item in receipt.items] == ["observed", "ignored"]
    (ticket,) = await tickets_of(store)
    assert ticket.status is TicketStatus.OPEN
    assert [row.kind for row in await history(store, ticket.id)] == ["transition", "observation"]


async def test_a_replayed_message_is_refused(reception: Reception, store: Database) -> None:
    headers = signed(builds())
    await reception.receive("builds", headers, builds())
    for _ in range(2):
        error = await refused(reception, "builds", headers, builds())
        assert error.status == 409
    (ticket,) = await tickets_of(store)
    assert ticket.occurrence_count == 1
    # The same words, said anew by who knows the secret, are another occurrence.
    await reception.receive("builds", signed(builds(), ago_s=2), builds())
    (ticket,) = await tickets_of(store)
    assert ticket.occurrence_count == 2


async def test_one_of_two_replays_at_once_is_taken(reception: Reception, store: Database) -> None:
    headers = signed(builds())
    done = await asyncio.gather(
        *(reception.receive("builds", headers, builds()) for _ in range(6)), return_exceptions=True
    )
    assert sum(isinstance(one, Receipt) for one in done) == 1
    assert [one.status for one in done if isinstance(one, IntakeRefused)] == [409] * 5
    (ticket,) = await tickets_of(store)
    assert ticket.occurrence_count == 1


@pytest.mark.parametrize("ago_s", [301.0, -302.0])
async def test_a_message_out_of_its_time_is_refused(reception: Reception, ago_s: float) -> None:
    assert (await refused(reception, "builds", signed(builds(), ago_s=ago_s), builds())).status == 401


async def test_a_changed_body_is_refused(reception: Reception) -> None:
    assert (await refused(reception, "builds", signed(builds()), builds(level="low"))).status == 401


async def test_a_message_that_lacks_something_refuses_all(reception: Reception, store: Database) -> None:
    document = sample("build-failed")
    document["builds"].append({"id": 1, "status": "failed", "project": {}})
    body = json.dumps(document).encode()
    error = await refused(reception, "builds", signed(body), body)
    assert error.status == 422
    assert "project.name" in str(error)
    assert await tickets_of(store) == []
    for other in (b"{}", b"[]", b'"x"', b'{"builds": {}}'):
        assert (await refused(reception, "builds", signed(other), other)).status == 422
    # Nothing was remembered of it: the same signature is good for what comes.
    assert await tickets_of(store) == []


async def test_a_name_cannot_be_that_of_a_watched_invariant(reception: Reception, store: Database) -> None:
    """Whoever writes messages does not get into the ticket of a monitor."""
    body = builds(project={"name": "x"})
    await reception.receive("builds", signed(body), body)
    (ticket,) = await tickets_of(store)
    assert ticket.violation_key.startswith("build-x:builds/")


def task_door(**task: Any) -> Settings:
    door = {
        "name": "asks",
        "kind": "webhook",
        "secret_env": "BUILDS_SECRET",
        "priority": 5,
        "webhook": {"each": "items", "task": {"prompt": "{what}", "key": "{id|}", **task}},
    }
    return Settings.model_validate({"intake": [door]})


async def test_a_webhook_becomes_tasks(store: Database) -> None:
    given = {"checks": ("test -f done",), "budget_usd": 2.0, "labels": {"by": "{by}"}, "name": "n {id}"}
    reception = Reception(store, task_door(**given), environ=SECRETS)
    body = json.dumps(
        {"items": [{"id": "7", "what": "Do it.", "by": "me"}, {"id": "7", "what": "x", "by": ""}]}
    ).encode()
    receipt = await reception.receive("asks", signed(body), body)
    assert [item.what for item in receipt.items] == ["opened", "seen"]
    (ticket,) = await tickets_of(store)
    spec = TaskSpec.model_validate(ticket.check_spec)
    assert (spec.prompt, spec.name, [c.command for c in spec.checks], spec.budget_usd) == (
        "Do it.", "n 7", ["test -f done"], 2.0,
    )  # fmt: skip
    assert (ticket.kind, ticket.priority, ticket.labels) == (TicketKind.TASK, 5, {"by": "me"})
    receipt = await reception.receive("asks", signed(body, ago_s=1), body)
    assert [(item.what, item.ticket_id) for item in receipt.items] == [("seen", 1), ("seen", 1)]


@pytest.mark.parametrize(
    ("task", "item"),
    [
        ({"checks": ("true",)}, {"id": 1, "what": "x"}),
        ({"ref": "{ref}", "repo": "/nowhere"}, {"id": 1, "what": "x", "ref": "-x"}),
        ({"repo": "/nowhere"}, {"id": 1, "what": "x"}),
        ({}, {"id": 1, "what": " \n"}),
    ],
)
async def test_a_task_that_cannot_be_opened_leaves_nothing(
    store: Database, task: dict[str, Any], item: dict[str, Any]
) -> None:
    reception = Reception(store, task_door(**task), environ=SECRETS)
    body = json.dumps({"items": [item]}).encode()
    assert (await refused(reception, "asks", signed(body), body)).status == 422
    assert await tickets_of(store) == []


# ---- GitHub


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    words = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    for command in (("init", "-q", str(folder)), ("-C", str(folder), "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(["git", *words, *command], check=True, capture_output=True)
    return folder


@pytest.fixture
def github(store: Database, repository: Path) -> Reception:
    door = {
        "name": "github",
        "kind": "github",
        "secret_env": "GITHUB_WEBHOOK_SECRET",
        "github": {
            "label": "operator",
            "repository": [{"name": "Example-Org/shop", "url": repository.as_uri(), "checks": ["test -f x"]}],
        },
    }
    return Reception(store, Settings.model_validate({"intake": [door]}), environ=SECRETS)


def issue(name: str = "github-labeled", *, of: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A sample event; ``of``: changes of its issue."""
    document = sample(name)
    document["issue"] |= of or {}
    return json.dumps(document | changes).encode()


async def post(reception: Reception, body: bytes, **headers: Any) -> Receipt:
    return await reception.receive("github", from_github(body, **headers), body)


async def test_a_labelled_issue_becomes_a_task(github: Reception, store: Database, repository: Path) -> None:
    receipt = await post(github, issue())
    assert [(item.what, item.ticket_id) for item in receipt.items] == [("opened", 1)]
    (ticket,) = await tickets_of(store)
    spec = TaskSpec.model_validate(ticket.check_spec)
    assert spec.name == "shop#17 The basket forgets its discount"
    assert spec.prompt.startswith("The basket forgets its discount\n\nAdd an article")
    assert "https://github.com/example-org/shop/issues/17, by a-customer)" in spec.prompt
    assert (spec.source.kind, spec.source.location) == ("git", repository.as_uri())
    assert spec.source.commit is not None
    assert [check.command for check in spec.checks] == ["test -f x"]
    assert ticket.labels == {"repository": "Example-Org/shop", "issue": "17"}
    (opened,) = await history(store, ticket.id)
    assert opened.body["actor"] == "github (intake)"


async def test_a_delivery_that_comes_again_is_answered_as_before(github: Reception, store: Database) -> None:
    number = clock.new_id()
    first = await post(github, issue(), delivery=number)
    again = await post(github, issue(), delivery=number)
    assert again == first.model_copy(update={"replayed": True})
    with pytest.raises(IntakeRefused, match="Another delivery"):
        await post(github, issue(of={"title": "x"}), delivery=number)
    assert len(await tickets_of(store)) == 1


async def test_an_issue_is_one_task_however_often_it_is_labelled(github: Reception, store: Database) -> None:
    receipts = await asyncio.gather(*(post(github, issue()) for _ in range(4)))
    assert sorted(item.what for receipt in receipts for item in receipt.items) == ["opened", "seen", "seen", "seen"]
    await TicketDB(store).cancel_ticket(1)
    assert [item.what for item in (await post(github, issue())).items] == ["seen"]
    assert len(await tickets_of(store)) == 1


async def test_a_closed_issue_is_noted_in_the_history(github: Reception, store: Database) -> None:
    assert [item.what for item in (await post(github, issue("github-closed"))).items] == ["ignored"]
    await post(github, issue())
    assert [item.what for item in (await post(github, issue("github-closed"))).items] == ["observed"]
    (ticket,) = await tickets_of(store)
    assert ticket.status is TicketStatus.OPEN
    note = (await history(store, ticket.id))[-1]
    assert (note.kind, note.body["saw"], note.body["detail"]["by"]) == ("observation", "issue closed", "a-maintainer")


STRANGER = {"login": "a-customer", "id": 21031067}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (issue(sender=STRANGER), "ignored"),
        (issue(sender=STRANGER, of={"author_association": "MEMBER"}), "opened"),
        (issue(action="opened"), "ignored"),
        (issue(action="opened", of={"author_association": "OWNER"}), "opened"),
        (issue(action="opened", of={"author_association": "OWNER", "labels": []}), "ignored"),
        (issue(action="opened", of={"author_association": "OWNER", "labels": None}), "ignored"),
        (issue(label={"name": "bug"}), "ignored"),
        (issue(label={"name": "Operator"}), "opened"),
        (issue(action="unlabeled"), "ignored"),
        (issue(action="edited"), "ignored"),
        (issue(of={"pull_request": {"url": "x"}}), "ignored"),
        (issue(repository={"full_name": "example-org/other"}), "ignored"),
        (issue(repository={"full_name": "EXAMPLE-ORG/Shop"}), "opened"),
    ],
)
async def test_who_may_have_work_done(github: Reception, store: Database, body: bytes, what: str) -> None:
    """A template lets every stranger open an issue that carries the label: another person has to set it."""
    assert [item.what for item in (await post(github, body)).items] == [what]
    assert len(await tickets_of(store)) == (what == "opened")


async def test_ping_and_other_events_are_taken_and_do_nothing(github: Reception, store: Database) -> None:
    ping = (SAMPLES / "github-ping.json").read_bytes()
    assert (await post(github, ping, event="ping")).note == "pong"
    assert [item.what for item in (await post(github, ping, event="push")).items] == ["ignored"]
    assert await tickets_of(store) == []


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", issue(action=None), issue(issue=[]), issue(of={"number": "17"}), issue(of={"number": True}),
     issue(of={"number": -1}), issue(of={"number": 10**30}), issue(repository=None), issue(label=None)],
)  # fmt: skip
async def test_what_is_no_event_of_github_is_refused(github: Reception, store: Database, body: bytes) -> None:
    assert (await refused(github, "github", from_github(body), body)).status == 422
    assert await tickets_of(store) == []


async def test_a_long_issue_is_cut_and_keeps_its_end(github: Reception, store: Database) -> None:
    await post(github, issue(of={"body": "x" * 300_000, "title": "t\n" * 500}))
    (ticket,) = await tickets_of(store)
    assert len(ticket.message) <= 100_000
    assert ticket.message.endswith("by a-customer)\n")


async def test_a_repository_that_cannot_be_reached_opens_nothing(
    github: Reception, store: Database, repository: Path
) -> None:
    repository.rename(repository.with_name("gone"))
    number = clock.new_id()
    body = issue()
    assert (await refused(github, "github", from_github(body, delivery=number), body)).status == 422
    repository.with_name("gone").rename(repository)
    assert [item.what for item in (await post(github, body, delivery=number)).items] == ["opened"]


async def test_a_wrong_signature_of_github_is_refused(github: Reception, store: Database) -> None:
    assert (await refused(github, "github", from_github(issue(), secret="x" * 16), issue())).status == 401
    assert (await refused(github, "github", bearer(), issue())).status == 401
    assert await tickets_of(store) == []
