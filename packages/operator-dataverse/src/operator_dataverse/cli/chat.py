"""``operator-dataverse chat``: the personal and the global manager, an answer by hand, and a test of the relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from operator_core.cli.context import AsJson, invocation, open_store, run
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import DryRun

if TYPE_CHECKING:
    from operator_dataverse.chat.relay import RelayTest
    from operator_dataverse.settings import DataverseSettings

__all__ = ["chat_app"]

chat_app = typer.Typer(help="Talk with people through the table of conversations.", no_args_is_help=True)
personal_app = typer.Typer(help="The manager of one person, on that person's dev box.", no_args_is_help=True)
global_app = typer.Typer(help="The manager of everybody who has none.", no_args_is_help=True)
chat_app.add_typer(personal_app, name="personal")
chat_app.add_typer(global_app, name="global")

Once = Annotated[bool, typer.Option("--once", help="Answer what waits now, and end.")]


@personal_app.command("run")
def personal_run(context: typer.Context, once: Once = False) -> None:
    """Answer the messages of `[dataverse] user`, until Ctrl-C or SIGTERM."""
    _serve(context, "personal", once)


@global_app.command("run")
def global_run(context: typer.Context, once: Once = False) -> None:
    """Answer people who are not known yet, or whose own manager is gone, until Ctrl-C or SIGTERM."""
    _serve(context, "global", once)


@chat_app.command("send")
def send(
    context: typer.Context,
    reply_to: Annotated[str, typer.Option("--reply-to", metavar="ROW", help="Id of the person's message.")],
    message: Annotated[str, typer.Option("--message", metavar="TEXT", help="The answer.")],
    followup: Annotated[bool, typer.Option("--followup", help="More is to come; the chat goes on waiting.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Answer one message by hand. The same answer again changes nothing."""

    async def work() -> dict[str, object]:
        from operator_dataverse.chat.relay import send_message
        from operator_dataverse.client import Dataverse

        async with Dataverse.open(_settings(context)) as dataverse:
            sent = await send_message(dataverse, reply_to, message, followup=followup, dry_run=dry_run)
        return {**sent._asdict(), "followup": followup, "dry_run": dry_run}

    done = run(work())
    out = Output()
    if as_json:
        out.json(done)
    elif dry_run:
        out.line(f"Would answer {done['email']} with the row {done['row_id']}.")
    else:
        out.line(f"{'Wrote' if done['fresh'] else 'There is already'} the row {done['row_id']} for {done['email']}.")


@chat_app.command("relay-test")
def relay_test(
    context: typer.Context,
    email: Annotated[
        str | None, typer.Option("--user-email", metavar="ADDRESS", help="Whose message; default: `[dataverse] user`.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for the answer of a manager.")] = 120.0,
    on_double: Annotated[
        bool, typer.Option("--double", help="Try it on the test double, without any organisation.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send a message the whole way, and remove it again; exit code 1 if a step fails."""
    out = Output()
    if dry_run:
        from operator_dataverse.chat.relay import STEPS

        if as_json:
            out.json({"dry_run": True, "steps": list(STEPS)})
        else:
            out.line(f"Would {', '.join(STEPS)}.")
        return

    async def work() -> RelayTest:
        from operator_dataverse.chat.relay import RelayTest
        from operator_dataverse.client import Dataverse, StaticToken

        if on_double:
            from operator_dataverse.double import Double

            with Double() as double:
                async with Dataverse(double.url, StaticToken(double.token)) as dataverse:
                    test = RelayTest(dataverse, email or "alice@example.com", timeout_s=timeout)
                    await test.run()
                    return test
        settings = _settings(context)
        async with Dataverse.open(settings) as dataverse:
            test = RelayTest(dataverse, email or settings.needs("user").user or "", timeout_s=timeout)
            await test.run()
            return test

    test = run(work())
    if as_json:
        out.json({"ok": test.ok, "steps": [step._asdict() for step in test.steps]})
    else:
        for step in test.steps:
            out.line(f"{'ok    ' if step.ok else 'FAILED'}  {step.name}: {step.detail} ({step.seconds:.2f} s)")
    if not test.ok:
        raise typer.Exit(1)


def _serve(context: typer.Context, role: Literal["personal", "global"], once: bool) -> None:
    settings = invocation(context).settings
    own = _settings(context).needs("url", *(("user",) if role == "personal" else ()))

    async def work() -> None:
        from operator_core.cli.until import until_signal
        from operator_dataverse.chat.assistant import Assistant
        from operator_dataverse.chat.global_ import global_manager
        from operator_dataverse.chat.personal import personal_manager
        from operator_dataverse.client import Dataverse

        out = Output()
        assistant = Assistant.open(settings)
        if isinstance(assistant, str):
            out.say(f"[Chat] Only plain commands are answered: {assistant}")
        try:
            async with (
                open_store(context, create=True) as database,
                Dataverse.open(own, learn=database.redactor.learn) as dataverse,
            ):
                start = personal_manager if role == "personal" else global_manager
                manager = start(own, database, dataverse, assistant, say=out.say)
                if once:
                    out.line(f"Took up {await manager.once()} message(s).")
                    return
                out.say(f"The {role} manager answers on {own.url}; Ctrl-C ends it.")
                await manager.run(until_signal())
        finally:
            if isinstance(assistant, Assistant):
                await assistant.close()

    run(work())


def _settings(context: typer.Context) -> DataverseSettings:
    from operator_dataverse.settings import settings_of

    return settings_of(invocation(context).settings)
