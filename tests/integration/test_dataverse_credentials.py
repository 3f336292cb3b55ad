"""Where the access token comes from: what is given, the variable, the Azure command line (a stub program on PATH)."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from operator_core.clock import Clock, now
from operator_dataverse.client import AccessToken, open_credential
from operator_dataverse.client.credentials import Chain, TokenCache
from operator_dataverse.errors import Unauthorized
from operator_dataverse.settings import DataverseSettings

RESOURCE = "https://example.crm.dynamics.com"
SECRET = "s3cret.token.of-nobody"


@pytest.fixture
def az(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program `az` on PATH that notes its words and runs a few lines of shell."""
    monkeypatch.delenv("DATAVERSE_TOKEN", raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # none that looks for a service
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(lines: str) -> Path:
        program, notes = tmp_path / "az", tmp_path / "words"
        program.write_text(f"#!/bin/sh\necho \"$@\" >> '{notes}'\n{lines}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return notes

    return put


async def test_the_order(az: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expires = int(now().timestamp()) + 3600
    notes = az(f"echo '{json.dumps({'accessToken': SECRET, 'expires_on': expires, 'expiresOn': 'x'})}'")
    settings = DataverseSettings()
    found = await open_credential(settings).get(RESOURCE)
    assert found == AccessToken(SECRET, float(expires))
    assert notes.read_text() == f"account get-access-token --resource {RESOURCE} --output json\n"

    monkeypatch.setenv("DATAVERSE_TOKEN", "from-the-variable\n")
    assert (await open_credential(settings).get(RESOURCE)).token == "from-the-variable"
    assert (await open_credential(settings, "given").get(RESOURCE)).token == "given"
    monkeypatch.setenv("PA_TOKEN", "another")
    assert (await open_credential(settings, token_env="PA_TOKEN").get(RESOURCE)).token == "another"
    assert len(notes.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("echo 'ERROR: Please run az login' >&2; exit 1", "Please run az login"),
        ("exit 3", "exit code 3"),
        ("echo no json", "printed no token"),
        ("echo '[]'", "printed no token"),
        ("echo '[1]'", "printed no token"),
        ("""echo '{"accessToken": null}'""", "printed no token"),
        (f'echo \'{{"accessToken": ""}}\'; echo {SECRET} >&2', "printed no token"),
        ("printf '\\033[31mred\\033[0m' >&2; exit 1", "`az` says: red"),
    ],
)
async def test_what_the_program_says_is_told(az: Callable[[str], Path], lines: str, said: str) -> None:
    az(lines)
    with pytest.raises(Unauthorized, match="run `az login`") as told:
        await open_credential(DataverseSettings()).get(RESOURCE)
    assert said in str(told.value)
    assert SECRET not in str(told.value)
    assert "\x1b" not in str(told.value)


async def test_a_program_whose_asker_leaves_is_ended(az: Callable[[str], Path], tmp_path: Path) -> None:
    az(f"echo $$ > '{tmp_path}/pid'; exec sleep 1000")
    asking = asyncio.create_task(open_credential(DataverseSettings()).get(RESOURCE))
    pid = tmp_path / "pid"
    for _ in range(500):
        if pid.exists() and pid.read_text().strip():
            break
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


class Counting:
    def __init__(self, life_s: float | None, clock: Clock) -> None:
        self.life_s = life_s
        self.clock = clock
        self.count = 0

    async def get(self, resource: str) -> AccessToken:
        self.count += 1
        ends = None if self.life_s is None else self.clock.now().timestamp() + self.life_s
        return AccessToken(f"{SECRET}-{self.count}", ends)


class Stopped(Clock):
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0
        self._begin = super().now()

    def now(self):  # type: ignore[no-untyped-def]
        from datetime import timedelta

        return self._begin + timedelta(seconds=self.ahead)


@pytest.mark.parametrize(("life_s", "kept_s"), [(3600.0, 3300.0), (200.0, 100.0), (None, 2700.0)])
async def test_how_long_a_token_is_kept(life_s: float | None, kept_s: float) -> None:
    clock = Stopped()
    credential = Counting(life_s, clock)
    cache = TokenCache(credential, RESOURCE, clock=clock)
    await asyncio.gather(*(cache.token() for _ in range(5)))
    clock.ahead = kept_s - 1
    assert await cache.token() == f"{SECRET}-1"
    assert credential.count == 1
    clock.ahead = kept_s + 1
    assert await cache.token() == f"{SECRET}-2"


async def test_a_refused_token_is_replaced_once_for_all() -> None:
    credential = Counting(3600.0, Clock())
    cache = TokenCache(credential, RESOURCE)
    refused = await cache.token()
    assert await asyncio.gather(*(cache.another(refused) for _ in range(5))) == [f"{SECRET}-2"] * 5
    assert credential.count == 2


async def test_the_first_that_has_one() -> None:
    class Nobody:
        async def get(self, resource: str) -> AccessToken:
            raise Unauthorized("nothing here")

    credential = Counting(None, Clock())
    assert (await Chain([("a", Nobody()), ("b", credential)], "do").get(RESOURCE)).token == f"{SECRET}-1"
    with pytest.raises(Unauthorized, match=r"do \(a: nothing here\)"):
        await Chain([("a", Nobody())], "do").get(RESOURCE)
