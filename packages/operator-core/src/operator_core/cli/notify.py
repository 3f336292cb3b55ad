"""``operator notify`` and ``operator digest``: who is told what, whether it arrives, and what happened last night."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation, open_server, open_store, run
from operator_core.cli.output import Output, seconds
from operator_core.errors import ConfigError, OperatorError

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.db.engine import Database
    from operator_core.model.digest import Digest
    from operator_core.model.notification import Channel
    from operator_core.notify.outbox import Outcome, Slip

__all__ = ["app", "digest", "when_next"]

app = typer.Typer(help="Channels that tell people and programs what happens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="CHANNEL", help="Name of a channel of the configuration.")]

_AGO = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=366)


@app.command("list")
def list_channels(context: typer.Context, as_json: AsJson = False) -> None:
    """The channels, whether their addresses and secrets can be had here, and what they are told."""
    from operator_core.announce.secret import access_of
    from operator_core.redaction import Redactor

    notify = invocation(context).settings.notify
    rows = []
    for channel in notify.channel:
        rules = [str(n) for n, rule in enumerate(notify.rule, 1) if channel.name in rule.channels]
        daily = [f"digest at {notify.digest.at}"] if notify.digest and channel.name in notify.digest.channels else []
        try:
            to = access_of(channel, Redactor()).url.partition("://")[0] + "://…"
            problem = None
        except ConfigError as error:
            to, problem = None, str(error)
        told = ", ".join(([f"rule {' '.join(rules)}"] if rules else []) + daily) or "nothing"
        rows.append({"name": channel.name, "kind": channel.kind, "to": to, "told": told, "problem": problem})
    if as_json:
        Output().json(rows)
        return
    columns = ("name", "kind", "to", "told", "problem")
    cells = [[row[c] for c in columns] for row in rows]
    Output().table(columns, cells, empty="No channels are configured; docs/notifications.md says how.")


@app.command("test")
def test_channel(context: typer.Context, name: Name) -> None:
    """Send a test message now, without the outbox, and say whether it arrived."""
    from operator_core import clock

    settings = invocation(context).settings
    channel = _channel(settings, name)

    async def work() -> None:
        async with open_store(context, create=True) as database:
            _say_outcome(name, await _send(settings, database, channel, "test", {"id": f"test-{clock.new_id()}"}))

    run(work())


@app.command("outbox")
def outbox(context: typer.Context, as_json: AsJson = False) -> None:
    """What still has to go out and why, and what was given up."""
    from operator_core.announce.projection import CHANNELS
    from operator_core.notify.outbox import slips

    async def work() -> list[Slip]:
        async with open_store(context) as database:
            return await slips(database, CHANNELS)

    found = run(work())
    if as_json:
        Output().json([slip._asdict() for slip in found])
        return
    rows = [
        (s.id, s.channel.removeprefix(CHANNELS), s.kind, s.attempts, seconds(s.created_at), *when_next(s), s.error)
        for s in found
    ]
    columns = ("letter", "channel", "kind", "attempts", "since", "state", "next try", "why")
    Output().table(columns, rows, empty="Everything has gone out.")


@app.command("again")
def again(
    context: typer.Context,
    letter: Annotated[int, typer.Argument(metavar="LETTER", help="Its number in `operator notify outbox`.")],
) -> None:
    """Let a message that waits, or that was given up, go out now."""

    async def work() -> None:
        from operator_core.notify.outbox import again as once_more

        async with open_store(context) as database:
            await once_more(database, letter, actor="person (cli)")

    run(work())
    Output().ours(f"Letter {letter} goes out as soon as a server runs (`operator serve`).")


def digest(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="12h|TIME", help="So long ago (30m, 12h, 7d, 2w), or a moment in ISO 8601.")
    ] = "24h",
    send: Annotated[str | None, typer.Option(metavar="CHANNEL", help="Send it there now, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """What happened: resolved and how it was proved, what needs a person, what came most often, and the cost."""
    begin, there = _moment(since), invocation(context).server
    if there is not None:
        if send is not None:
            raise ConfigError("--send uses the channels of this machine; leave --server out, or --send.")
        _say_digest(run(_asked_there(context, begin)), there, as_json)
        return
    settings = invocation(context).settings
    channel = _channel(settings, send) if send is not None else None

    async def work() -> tuple[Digest, Outcome | None]:
        from operator_core import clock
        from operator_core.api.digest import make_digest

        async with open_store(context) as database:
            made = await make_digest(database, begin)
            if channel is None:
                return made, None
            body = {"digest": made.model_dump(mode="json"), "id": f"digest-{clock.new_id()}"}
            return made, await _send(settings, database, channel, "digest", body)

    from operator_core.announce.delivery import base_url_of

    made, outcome = run(work())
    _say_digest(made, base_url_of(settings) if settings.web.public_url else None, as_json)
    if outcome is not None and channel is not None:
        _say_outcome(channel.name, outcome, quiet=as_json)


async def _asked_there(context: typer.Context, begin: datetime) -> Digest:
    async with open_server(context) as server:
        return await server.digest(begin)


def _say_digest(made: Digest, base: str | None, as_json: bool) -> None:
    from operator_core.announce.digest_words import digest_words

    out = Output()
    if as_json:
        out.json(made)
        return
    words = digest_words(made, base)
    out.line(f"{words.title}\n\n{words.body}")


async def _send(settings: Settings, database: Database, channel: Channel, kind: str, body: dict[str, Any]) -> Outcome:
    from operator_core.announce.delivery import Delivery, base_url_of

    return await Delivery(settings, database, base_url=base_url_of(settings)).send_now(channel, kind, body)


def _channel(settings: Settings, name: str) -> Channel:
    channels = {channel.name: channel for channel in settings.notify.channel}
    if name not in channels:
        known = ", ".join(channels) or "none; docs/notifications.md says how to make one"
        raise ConfigError(f"There is no channel {name!r}; the channels are {known}.")
    return channels[name]


def _say_outcome(name: str, outcome: Outcome, *, quiet: bool = False) -> None:
    from operator_core.notify.outbox import Delivered

    if not isinstance(outcome, Delivered):
        raise OperatorError(f"Channel {name} did not take the message: {outcome.why}.")
    if not quiet:
        Output().line(f"Channel {name} took the message.")


def when_next(slip: Slip) -> tuple[str, str]:
    """How it stands, and when it is tried next."""
    if slip.ended_at is not None:
        return "given up", f"never, without `operator notify again {slip.id}`"
    if slip.under_way:
        return "on its way", "now"
    # In order: what is due itself waits for the one before it.
    after = f"after letter {slip.behind}" if slip.behind is not None else None
    return "waits" if slip.attempts else "new", after or seconds(slip.next_try) or "as soon as a server runs"


def _moment(text: str) -> datetime:
    from operator_core import clock

    now = clock.now()
    if found := _AGO.fullmatch(text.strip()):
        return now - min(int(found[1]) * _UNITS[found[2]], _LONGEST)
    try:
        moment = clock.parse_iso(text.strip().removesuffix(" UTC"))
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no time; write 30m, 12h, 7d, or a moment such as 2026-01-28T18:00.") from None
    if moment > now:
        raise ConfigError("The digest begins in the future; give a moment that is over.")
    return max(moment, now - _LONGEST)
