"""What a task's row, its messages and its cards say, while it runs and when it ends (B-009, B-010, B-012, B-016)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operator_core.db.tickets import TicketDB
from operator_core.errors import NotFound, SourceError
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.ticket import Reason, TicketStatus
from operator_dataverse import __version__
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.intake.claims import claim_task
from operator_dataverse.intake.leases import watch_rows
from operator_dataverse.reporting import Reporter
from operator_dataverse.settings import DataverseSettings
from tests.support import wait_until_async
from tests.support.dataverse import double, plain_double  # noqa: F401
from tests.support.reporting import BOX, FOLDER, PERSON, Scene, desk_of, open_scene

WHOLE = "https://files.example.com/srv/sessions/task_1/attempt-1"


@pytest.fixture
async def scene(double: Double, tmp_path: Path) -> AsyncIterator[Scene]:  # noqa: F811
    async with open_scene(double, str(tmp_path / "operator.db")) as scene:
        yield scene


async def verified(scene: Scene, summary: str = "- The shop works again") -> None:
    await scene.write(
        Draft(EntryKind.OUTCOME, "proposed", "done", meta={"outcome": "proposed"}, phase="worker_1"),
        Draft(EntryKind.VERDICT, "verified", body={"kind": "verified", "why": "tested"}, phase="verifier_1"),
        Draft(EntryKind.SUMMARY, summary[:50], summary, phase="summarizer"),
        Draft(EntryKind.DELIVERED, "commit", body={"commit": "0123456789abcdef", "note": ""}, phase="deliver"),
    )


async def test_a_completed_task_is_in_its_row_with_all_that_belongs_to_it(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.say("I look at it.")
    await scene.write(
        Draft(EntryKind.TOOL_CALL, "shell: ls", tool_name="shell", tool_params={"command": "ls -l"}, phase="worker_1"),
        Draft(EntryKind.TOOL_RESULT, "exit 0: 3 files", "total 3", tool_name="shell", exit_code=0, phase="worker_1"),
    )
    await verified(scene, "# Summary\n\n- The shop works again, see [the page](workspace/a%20b.html)")
    await scene.end()
    assert await scene.report() == 0
    row = scene.row
    assert row["cr_status"] == 7
    assert row["cr_statusmessage"] == f"Completed: The shop works again, see [the page]({WHOLE}/workspace/a b.html)"
    assert f"[the page]({WHOLE}/workspace/a b.html)" in row["cr_result"]
    assert row["cr_result"].endswith("It is mended.\n\n[Git Commit: 01234567]")
    assert (row["crb3b_workingdir"], row["crb3b_onedriveurl"]) == (FOLDER, WHOLE)
    assert row["crb3b_shortdescription"] == "Mend the shop"
    lines = [json.loads(line) for line in row["cr_transcript"].splitlines()]
    assert lines[0]["message"] == "[Task started with autonomous agent]"
    assert {"I look at it.", "[shell] ls -l"} <= {line["message"] for line in lines}
    summary = json.loads(row["crb3b_sessionsummary"])
    assert (summary["task_id"], summary["dev_box"], summary["terminal_status"]) == (scene.row_id, BOX, "completed")
    assert scene.messages == [
        f"Task started: Mend it\nMend the shop\nTask: {scene.row_id}",
        f"Starting Worker/Verifier loop\nProject: {FOLDER}",
        "[Worker, iteration 1]\nI look at it.\n[shell] ls -l\n[shell result] exit 0: 3 files",
        "Verified (iteration 1). Creating summary of results...",
        "commit",
        f"Task completed: Mend it\n- The shop works again, see [the page]({WHOLE}/workspace/a b.html)",
    ]
    (first, *_) = scene.double.tables["cr_shragamessages"].where(crb3b_taskid=scene.row_id)
    assert (first["cr_name"], first["cr_from"], first["cr_to"]) == (
        "Task started: Mend it",
        "Integrated Task Worker",
        PERSON,
    )
    assert await scene.problems() == []


async def test_the_state_is_written_before_the_texts_and_each_once(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    await verified(scene)
    await scene.end()
    assert await scene.report() == 0
    assert await scene.report() == 0
    changes = [e for e in scene.double.history.effects("cr_shraga_tasks", scene.row_id) if e.kind == "updated"]
    told = [list(change.new) for change in changes]
    at = next(n for n, names in enumerate(told) if "cr_transcript" in names)
    assert scene.wrote("cr_status") == [5, 7]
    assert [n for n, names in enumerate(told) if "cr_status" in names][-1] < at
    assert sum("cr_transcript" in names for names in told) == 1, "the transcript goes out at the end, once (D-53)"
    (link,) = await scene.desk.links.list("dataverse", owner=BOX)
    assert link.settled


async def test_every_end_brings_state_result_and_transcript(scene: Scene) -> None:
    for status, code, word in (
        (TicketStatus.ESCALATED, 8, "Error: ESCALATED: gave_up: no way"),
        (TicketStatus.CANCELED, 9, "Task canceled by user"),
    ):
        await scene.task()
        await scene.begin()
        await scene.prepare()
        await scene.say("hm")
        await scene.end(status, "ESCALATED: gave_up: no way")
        assert await scene.report() == 0
        row = scene.row
        assert (row["cr_status"], row["cr_result"]) == (code, word)
        assert "hm" in row["cr_transcript"]
        assert json.loads(row["crb3b_sessionsummary"])["terminal_status"] == ("failed" if code == 8 else "canceled")
        assert scene.messages[-1].startswith("Task failed: Mend it" if code == 8 else "Task canceled by user")


async def test_canceled_between_work_and_verification_says_so(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.write(Draft(EntryKind.OUTCOME, "proposed", "ok", meta={"outcome": "proposed"}, phase="worker_1"))
    await scene.end(TicketStatus.CANCELED)
    assert await scene.report() == 0
    assert scene.messages[-1] == "Task canceled by user (before verification)"


async def test_canceled_before_it_began(scene: Scene) -> None:
    await scene.task()
    await TicketDB(scene.desk.database).cancel_ticket(scene.ticket)
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["cr_result"]) == (9, "Task canceled by user")
    assert scene.row.get("cr_transcript") is None


@pytest.mark.parametrize("seen", [True, False])
async def test_a_cancellation_over_there_is_not_repeated_and_keeps_its_reason(scene: Scene, seen: bool) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    scene.double.change("cr_shraga_tasks", scene.row_id, cr_status=9, cr_statusmessage="no longer needed")
    if seen:
        await watch_rows(scene.desk)
        assert (await TicketDB(scene.desk.database).get_ticket(scene.ticket)).cancel_requested
    await scene.end(TicketStatus.CANCELED)
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["cr_statusmessage"]) == (9, "no longer needed")
    assert scene.row["cr_result"] == "Task canceled by user"
    assert scene.row["cr_transcript"]
    assert scene.wrote("cr_status") == [5]
    assert await scene.problems() == []


async def test_a_question_waits_at_6_and_goes_on_when_it_is_answered(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.ask("Which colour?\nRed or green?")
    assert await scene.report() == 0
    assert scene.row["cr_status"] == 6
    assert scene.row["cr_statusmessage"] == "Waiting for input: Which colour?"
    assert scene.messages[-1] == "Worker blocked\nReason: Which colour?\nRed or green?"
    state = await scene.state()
    assert state.status == 6
    assert state.question_at
    assert scene.row.get("cr_transcript") is None
    await scene.answer("green")
    assert await scene.report() == 0
    assert scene.row["cr_status"] == 5
    await scene.begin()
    await scene.end()
    assert await scene.report() == 0
    assert scene.wrote("cr_status") == [5, 6, 5, 7]


async def test_verification_that_fails_is_told_with_its_feedback(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    for number in (9, 10):
        verdict = {"kind": "refuted", "why": "no"}
        await scene.write(
            Draft(EntryKind.VERDICT, "refuted", "It still leaks.", body=verdict, phase=f"verifier_{number}")
        )
    assert await scene.report() == 0
    assert scene.messages[-2:] == [
        "Verification failed (iteration 9). Retrying with feedback...\nIt still leaks.",
        "Verification failed (iteration 10).\nIt still leaks.",
    ]


async def test_what_a_person_canceled_stays_canceled(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    scene.double.change("cr_shraga_tasks", scene.row_id, cr_status=9, cr_statusmessage="no longer needed")
    await verified(scene)
    await scene.end()
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["cr_statusmessage"]) == (9, "no longer needed")
    assert "It is mended." in scene.row["cr_result"], "what was done is there to be read"
    assert [slip.error for slip in await scene.problems()] == ["A person canceled the task."]


async def test_a_row_of_somebody_else_is_left_alone(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    before = scene.double.change("cr_shraga_tasks", scene.row_id, crb3b_devbox="box-2", crb3b_leaseowner="box-2/1")
    await verified(scene)
    await scene.end()
    assert await scene.report() == 0
    assert scene.double.tables["cr_shraga_tasks"].etag(scene.row_id) == before
    assert {slip.error for slip in await scene.problems()} == {"The row belongs to box-2/1 now."}


async def test_a_result_that_waited_is_not_written_over_who_has_the_row_now(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    await scene.end()
    assert await scene.reporter.step() > 0  # in the outbox, and no further
    before = scene.double.change("cr_shraga_tasks", scene.row_id, crb3b_devbox="box-2", crb3b_leaseowner="box-2/1")
    await watch_rows(scene.desk)  # the intake has read its newest version
    assert await scene.report() == 0
    assert scene.double.tables["cr_shraga_tasks"].etag(scene.row_id) == before


async def test_a_row_that_was_lost_is_told_nothing_any_more(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    told, etag = scene.messages, scene.double.tables["cr_shraga_tasks"].etag(scene.row_id)
    await scene.desk.remember(scene.row_id, lost="it was given to box-2")
    await scene.say("still at it")
    await scene.end(TicketStatus.CANCELED)
    assert await scene.report() == 0
    assert scene.messages == told
    assert scene.double.tables["cr_shraga_tasks"].etag(scene.row_id) == etag


async def test_a_cancellation_that_the_intake_has_seen_already_is_not_overwritten(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    await scene.end()
    assert await scene.reporter.step() > 0
    scene.double.change("cr_shraga_tasks", scene.row_id, cr_status=9)
    await watch_rows(scene.desk)
    assert (await scene.state()).status == 9
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.wrote("cr_status")) == (9, [5])


async def test_a_row_that_was_lost_and_comes_back_is_told_of_its_new_attempt_alone(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    scene.double.change("cr_shraga_tasks", scene.row_id, crb3b_leaseowner="box-2/1", crb3b_devbox="box-2")
    await watch_rows(scene.desk)
    assert (await scene.state()).lost
    await scene.say("said in vain")
    await scene.end(TicketStatus.CANCELED)
    await watch_rows(scene.desk)
    told = scene.messages
    scene.double.change("cr_shraga_tasks", scene.row_id, cr_status=1, crb3b_leaseowner=None, crb3b_devbox=None)
    row = await scene.desk.row(scene.row_id)
    assert row is not None
    assert await claim_task(scene.desk, row)
    await scene.begin()
    await scene.prepare("Once more")
    await scene.end(text="Now.")
    assert await scene.report() == 0
    assert scene.messages[: len(told)] == told
    assert not [text for text in scene.messages if "vain" in text or "canceled" in text]
    assert (scene.row["cr_status"], scene.row["cr_result"]) == (7, "Now.")
    assert "vain" not in scene.row["cr_transcript"]
    assert await scene.problems() == []


async def test_what_waited_when_the_row_was_lost_is_not_written(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.reporter.step() > 0
    await scene.desk.remember(scene.row_id, lost="it was given to box-2")
    etag = scene.double.tables["cr_shraga_tasks"].etag(scene.row_id)
    assert await scene.report() == 0
    assert scene.double.tables["cr_shraga_tasks"].etag(scene.row_id) == etag
    assert {slip.error for slip in await scene.problems()} == {"The row is not ours any more: it was given to box-2."}


async def test_two_processes_of_one_box_tell_everything_once(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    other = Reporter(scene.desk)
    for n in range(40):
        await asyncio.gather(scene.reporter.step(), scene.say(f"text {n}"), other.step())
    assert await scene.report() == 0
    told = "\n".join(scene.messages).splitlines()
    assert [line for line in told if line.startswith("text")] == [f"text {n}" for n in range(40)]


async def test_another_writer_of_the_row_does_not_disturb(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    for name in ("a", "b", "c"):
        scene.double.change("cr_shraga_tasks", scene.row_id, crb3b_deeplink=f"https://example.com/{name}")
        await scene.say(name)
        await scene.report()
    await scene.end()
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["crb3b_deeplink"]) == (7, "https://example.com/c")


async def test_a_lost_answer_is_not_written_twice(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    assert await scene.report() == 0
    await verified(scene)
    await scene.end()
    scene.double.faults.drop_answer(times=4, method="PATCH")
    assert await scene.report() == 0
    assert scene.wrote("cr_status") == [5, 7]
    assert len(scene.messages) == len(set(scene.messages))
    assert await scene.problems() == []


async def test_hostile_and_huge_texts_fit_their_columns(scene: Scene) -> None:
    name = "O'Neill') or 1 eq 1 <script>alert(1)</script> \u202e 😀"
    await scene.task(name=name[:100])
    await scene.begin()
    await scene.prepare("<b>" + "😀" * 300)
    big = "\x1b[31m<img src=x onerror=alert(1)>\x00\ud800😀'" * 2000
    await scene.say(*[big] * 25)
    await scene.write(Draft(EntryKind.SUMMARY, "s", "[x](javascript:alert(1)) [y](../../etc/passwd) [z](workspace/z)"))
    await scene.end(TicketStatus.RESOLVED, "😀" * 60_000)
    assert await scene.report() == 0
    row = scene.row
    assert row["cr_status"] == 7
    assert _units(row["cr_result"]) <= 100_000
    assert row["cr_result"].endswith(f"… (truncated; the whole text is in {FOLDER}/result.md)")
    assert "[x](javascript:alert(1)) [y](../../etc/passwd)" in row["cr_result"]
    assert f"[z]({WHOLE}/workspace/z)" in row["cr_result"]
    assert 1_000_000 < _units(row["cr_transcript"]) <= 1_048_576
    assert row["cr_transcript"].endswith(f"… (truncated; the whole text is in {FOLDER}/transcript.md)")
    progress = [text for text in scene.messages if "onerror" in text]
    assert len(progress) >= 5
    assert sum(text.count("onerror") for text in progress) > 25 * 500
    assert not any(c in text for text in scene.messages for c in "\x1b\x00\u202e")
    assert all(_units(text) <= 100_000 for text in scene.messages)
    assert await scene.problems() == []


async def test_progress_is_collected_and_limited(double: Double, tmp_path: Path) -> None:  # noqa: F811
    async with open_scene(double, str(tmp_path / "operator.db"), message_s=0.5, messages_per_minute=60) as scene:
        await scene.task()
        await scene.begin()
        await scene.prepare()
        await scene.say("one")
        assert await scene.report() == 0
        assert len(scene.messages) == 2, "progress is not told at once"
        await scene.say("two", "three")
        await asyncio.sleep(0.6)
        await scene.report()
        assert scene.messages[2:] == ["[Worker, iteration 1]\none\ntwo\nthree"]
        await scene.say("four")
        await asyncio.sleep(0.6)
        await scene.report()
        assert len(scene.messages) == 3, "one a second is the limit"
        await asyncio.sleep(0.6)
        await scene.report()
        assert scene.messages[3:] == ["four"]
        await scene.say("five")
        await scene.end()
        await scene.report()
        assert scene.messages[4] == "five", "an end waits for nothing, and loses nothing"


async def test_without_the_messages_table_the_row_is_written_all_the_same(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    scene.double.store.drop_table("cr_shragamessages")
    await scene.end()
    await scene.report(2)
    assert scene.row["cr_status"] == 7
    assert {slip.channel for slip in await scene.problems()} == {f"dataverse:{BOX}/{scene.row_id}/messages"}


async def test_columns_that_the_table_lacks_do_not_keep_the_state_from_it(plain_double: Double, tmp_path: Path) -> None:  # noqa: F811
    plain_double.store.drop_column("cr_shraga_tasks", "crb3b_sessionsummary")
    async with open_scene(plain_double, str(tmp_path / "operator.db")) as scene:
        await scene.task()
        await scene.begin()
        await scene.prepare()
        await scene.end()
        assert await scene.report() == 0
        assert (scene.row["cr_status"], scene.row["cr_result"]) == (7, "It is mended.")


async def test_a_task_that_is_opened_again_here_runs_again_over_there(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.end(TicketStatus.ESCALATED, "no")
    assert await scene.report() == 0
    await TicketDB(scene.desk.database).reopen_ticket(scene.ticket)
    assert await scene.report() == 0
    assert scene.row["cr_status"] == 5
    await scene.begin()
    await scene.prepare()
    await scene.end(text="Now it is.")
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["cr_result"]) == (7, "Now it is.")
    assert sum(text.startswith("Task started") for text in scene.messages) == 2


async def test_what_an_attempt_before_had_to_say_is_void(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.end()
    scene.double.faults.storm(1.0)
    await scene.report(0.3)
    state = await scene.state()
    scene.double.faults.clear()
    await scene.desk.remember(scene.row_id, attempt=state.attempt + 1)
    scene.double.change("cr_shraga_tasks", scene.row_id, cr_statusmessage="claimed anew")
    await scene.report()
    assert (scene.row["cr_status"], scene.row["cr_statusmessage"]) == (5, "claimed anew")


async def test_cards_are_posted_in_their_order(double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TEAMS_WEBHOOK_URL", double.webhook_url)
    async with open_scene(double, str(tmp_path / "operator.db")) as scene:
        await scene.task()
        await scene.begin()
        await scene.prepare()
        await scene.report()
        await scene.ask("Which <b>colour</b>?")
        await scene.report()
        await scene.answer("green")
        await scene.begin()
        await verified(scene)
        await scene.end()
        assert await scene.report() == 0
        await scene.reporter.authentication_required("please run /login")
        assert await scene.report() == 0
        assert await scene.problems() == []
    heads = [
        card["body"][0]["text"] if "text" in card["body"][0] else json.dumps(card["body"][0]) for card in double.cards
    ]
    for head, words in zip(heads, ("running", "waits", "completed", "sign in"), strict=True):
        assert words in head
    assert any("Action.Submit" in json.dumps(card) for card in double.cards)


async def test_while_it_runs_it_tells_by_itself_and_says_hello_and_goodbye(scene: Scene) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(scene.reporter.run(stop))
    await scene.task()
    await scene.begin()
    await scene.prepare()
    await scene.say("I look.")
    await wait_until_async(lambda: scene.messages[2:] == ["[Worker, iteration 1]\nI look."])
    await scene.end()
    scene.reporter.wake()
    await wait_until_async(lambda: scene.row.get("cr_transcript"))
    stop.set()
    await running
    assert await scene.reporter.drain(20, goodbye=True) == 0
    about_no_task = [row["cr_content"] for row in scene.double.tables["cr_shragamessages"].where(crb3b_taskid=None)]
    assert about_no_task == [f"Worker started (v{__version__}) on {BOX}", "Task worker stopped"]


async def test_a_resolution_by_hand_is_called_that(scene: Scene) -> None:
    await scene.task()
    await TicketDB(scene.desk.database).resolve_ticket(scene.ticket, note="I did it myself.")
    assert await scene.report() == 0
    assert (scene.row["cr_status"], scene.row["cr_statusmessage"]) == (7, "Completed by hand: I did it myself.")


async def test_the_reasons_of_an_escalation_are_told(scene: Scene) -> None:
    await scene.task()
    await scene.begin()
    await scene.end(TicketStatus.ESCALATED, "ESCALATED: budget: " + "long " * 100, Reason.BUDGET)
    assert await scene.report() == 0
    assert scene.row["cr_statusmessage"].startswith("Failed: ESCALATED: budget: long")
    assert _units(scene.row["cr_statusmessage"]) <= 200


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@pytest.mark.parametrize(("status", "code"), [(TicketStatus.RESOLVED, 7), (TicketStatus.ESCALATED, 8)])
@pytest.mark.parametrize("error", [ValueError, SourceError, NotFound])
async def test_an_end_that_cannot_be_told_is_an_end_all_the_same(
    double: Double,  # noqa: F811
    tmp_path: Path,
    status: TicketStatus,
    code: int,
    error: type[Exception],
) -> None:
    """A row that still said that it runs would be taken back by its lease, and done again and again."""

    def broken(path: Path) -> str | None:
        raise error("no such address")

    async with open_scene(double, str(tmp_path / "a.db")) as scene:
        scene.reporter = Reporter(scene.desk, urls=broken)
        await scene.task()
        await scene.begin()
        await scene.prepare()
        await scene.end(status)
        assert await scene.report() == 0
        assert await scene.report() == 0
        assert (scene.row["cr_status"], scene.wrote("cr_status")) == (code, [5, code])
        assert f"operator tickets show {scene.ticket}" in scene.row["cr_statusmessage"]
        link = await scene.desk.links.get("dataverse", scene.row_id)
        assert link is not None
        assert link.settled
        assert [line for line in scene.said if "cannot be reported" in line]


async def test_the_letters_of_one_box_are_not_carried_by_another(double: Double, tmp_path: Path) -> None:  # noqa: F811
    """They share a store; the other one has another account, another organisation and no webhook."""
    store = str(tmp_path / "a.db")
    with Double() as elsewhere:
        async with open_scene(double, store) as scene:
            await scene.task()
            await scene.begin()
            await scene.prepare()
            await scene.end()
            await scene.reporter.step()
            left = await scene.reporter.left()
            mine = DataverseSettings(url=elsewhere.url, user="bob@example.com", box=f"{BOX}0", retry_s=1)
            async with Dataverse(elsewhere.url, StaticToken(elsewhere.token), retry_s=1) as dataverse:
                other = Reporter(await desk_of(scene.desk.database, dataverse, mine, scene.said))
                assert await other.drain(5) == 0
            assert not elsewhere.tables["cr_shragamessages"].where()
            assert left == await scene.reporter.left() > 0
            assert await scene.report() == 0
            assert scene.row["cr_status"] == 7
            assert len(scene.messages) > 2
