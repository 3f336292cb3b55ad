"""Slack, Teams, e-mail and the like, by the package ``apprise`` (extra ``notify``).

It speaks in a process of its own, with a clean environment, limits and a deadline: a service that does not answer, or
answers without end, costs the server nothing. The address, which holds passwords, reaches it on standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from urllib.parse import parse_qsl, unquote, urlsplit

from operator_core.announce.words import Words
from operator_core.errors import ConfigError
from operator_core.notify.outbox import Delivered, Later, Outcome
from operator_core.redaction import MASK

__all__ = ["SCHEMES", "check_address", "outcome_of", "secrets_in", "send"]

_READ_BY_PEOPLE = (
    "46elks bark barks betterstack brevo bulksms bulkvs burstsms cliq clickatell clicksend d7sms dingtalk discord "
    "evolution evolutions feishu firehydrant flock freemobile gchat goalert goalerts gotify gotifys groupme "
    "guilded hassio hassios httpsms humhub humhubs ifttt ilert incidentio infobip irc ircs jira join kavenegar "
    "kook lark line mailersend mailgun mailto mailtos matrix matrixs mmost mmosts msg91 msgbird nctalk nctalks "
    "nexmo notifiarr ntfy ntfys o365 octopush onesignal opsgenie pagerduty pagertree pbul plivo postmark pover "
    "prowl push pushdeer pushdeers pushed pushme pushplus pushy resend revolt ringc rocket rockets ryver sendgrid "
    "sendpulse seven sfr signal signalgrid signals signl4 simplepush sinch slack smseagle smseagles smtp2go "
    "sparkpost spike splunk squadcast stackfield synology synologys telesign telnyx tgram threema trigv trigvs "
    "twilio twist viber victorops voipms vonage webex wechat wecombot whapi whatsapp workflow workflows wxpusher "
    "wxteams zcliq zoom zulip"
)
SCHEMES = frozenset(_READ_BY_PEOPLE.split())
"""What an address may begin with: services that people read. Local programs, files, buses, logs, public networks and
plain HTTP, for which there are signed webhooks, are not among them."""

# They would have files of this machine read, or sent.
_FILES = frozenset({"attach", "key", "keyfile", "pem", "pgp", "pgpkey", "subfile", "template"})
_DEADLINE_S = 30.0
_PASSED_ON = ("PATH", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONPATH", "HTTP_PROXY", "HTTPS_PROXY")
_LONGEST_ADDRESS = 8192
_SECRET_FROM = 6
_TOKEN = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_%-]{12,}")
_PROGRAM = "operator_core.announce.apprise_child"


def check_address(url: str) -> None:
    """Make sure that an address may be used.

    Raises:
        ConfigError: It may not; the message does not show it.
    """
    scheme = url.partition("://")[0].lower()
    if not re.fullmatch(r"[a-z0-9]{2,20}://\S+", url[:_LONGEST_ADDRESS], re.IGNORECASE) or len(url) > _LONGEST_ADDRESS:
        raise ConfigError("The address of an apprise channel begins like slack:// or mailtos://; correct it.")
    if scheme not in SCHEMES:
        raise ConfigError(
            f"Addresses that begin with {scheme}:// are not allowed; use one that people read, or a signed webhook."
        )
    named = {name.lower() for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)} & _FILES
    if named:
        raise ConfigError(f"The address of an apprise channel may name no files; take `{min(named)}` out of it.")
    if find_spec("apprise") is None:
        raise ConfigError("Channels of the kind apprise need the extra `notify`: install `operator-core[notify]`.")


def secrets_in(url: str, *, certain: bool = False) -> list[str]:
    """The parts of an address that may be secret: all of it but the scheme and the host; the longest first.

    Args:
        certain: Only what can hardly be a word that is also used elsewhere: passwords and tokens.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        pieces = re.split(r"[/?&=;:,#]", f"{parts.path}?{parts.query}")
        passwords = [parts.password or ""]
        pieces += [parts.username or ""]
    except ValueError:
        return [url]
    # Of a chat service the first token stands where a host would be.
    if not re.search(r"[.:]", host):
        pieces.append(host)
    if certain:
        pieces = [piece for piece in pieces if _TOKEN.fullmatch(piece)]
    found = {form for piece in pieces + passwords for form in (piece, unquote(piece)) if len(form) >= _SECRET_FROM}
    return [url, *sorted(found, key=len, reverse=True)]


async def send(url: str, words: Words, *, deadline_s: float = _DEADLINE_S) -> Outcome:
    """Send one message.

    Args:
        url: One that :func:`check_address` lets pass.
        deadline_s: Then the process is killed.
    """
    # Sent as text, which apprise turns into the form of the service, and without anything left to be taken for markup.
    order = json.dumps({"url": url, "title": words.title, "body": words.body, "deadline_s": deadline_s}).encode()
    try:
        child = await _start()
    except OSError as error:
        return Later(f"no process can be started for it ({error.strerror or error})")
    try:
        async with asyncio.timeout(deadline_s + 1):
            answer = await _talk(child, order)
    except TimeoutError:
        return Later("it did not answer in time")
    finally:
        # One that has ended is not killed: that would take its end away from who waits for it.
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return outcome_of(answer, url)


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )


async def _talk(child: asyncio.subprocess.Process, order: bytes) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(ConnectionError):
        child.stdin.write(order)
        await child.stdin.drain()
        child.stdin.close()
    answer = await child.stdout.read()
    await child.wait()
    return answer


def outcome_of(answer: bytes, url: str) -> Outcome:
    """What the answer of the process means; nothing of the address is in it."""
    try:
        said = json.loads(answer)
        delivered, why = said["ok"], str(said["why"])
    except (ValueError, KeyError, TypeError):
        return Later("it did not answer in time, or the program that speaks to it broke off")
    if delivered is True:
        return Delivered()
    for secret in secrets_in(url):
        why = why.replace(secret, MASK)
    return Later(why or "it did not take the message")


def _environment() -> dict[str, str]:
    names = {*_PASSED_ON, "NO_PROXY", *(name.lower() for name in _PASSED_ON[-2:]), "no_proxy"}
    passed = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    # Nobody's credentials are added to what is sent.
    return {**passed, "HOME": "/nonexistent", "NETRC": os.devnull, "PYTHONWARNINGS": "ignore"}
