"""Whatever is wrong, a command says it in one sentence, ends with an exit code that is not zero, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import Ticket
from operator_core.scripted import ScriptBrain, ScriptedServer, ServerThread
from tests.support import free_port, run_operator
from tests.support.processes import operator_environment

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def sentence(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one sentence; everything else about the failure is asserted here."""
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == code, done
    assert done.stderr.startswith("Error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("Error: ").strip()


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A database with one open ticket."""
    path = str(tmp_path / "operator.db")

    async def fill() -> None:
        async with Database.open(path) as database:
            await TicketDB(database).open_ticket("disk-full", "The disk is full.")

    asyncio.run(fill())
    return path


def ticket(store: str) -> Ticket:
    async def get() -> Ticket:
        async with Database.open(store) as database:
            return await TicketDB(database).get_ticket(1)

    return asyncio.run(get())


# ---- the store


@pytest.mark.parametrize(
    "words",
    [
        "tickets list", "tickets show 1", "tickets hold 1", "sessions list", "sessions show x", "sessions tail x",
        "audit list", "audit verify", "audit export x", "audit prune --keep 1",
    ],
)  # fmt: skip
def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, words: str) -> None:
    path = tmp_path / "typo.db"
    assert "no database at" in sentence(run_operator(*words.split(), db=path))
    assert not path.exists()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, and they stay as they are\n" * 100)
    sentence(run_operator("tickets", "list", db=path))
    assert path.read_text().startswith("these are notes")


@pytest.mark.parametrize("schema", ["", "CREATE TABLE customers (name TEXT)"])
def test_an_empty_or_foreign_database_is_not_an_intact_journal(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(schema)
    path.touch()
    for words in ("audit verify", "tickets list", "sessions list", "tickets hold 1"):
        said = sentence(run_operator(*words.split(), db=path))
        assert said.startswith(f"{path} has no Operator tables; check --db, or create them with `operator --db ")
    with contextlib.closing(sqlite3.connect(path)) as other:
        tables = other.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == ([("customers",)] if schema else []), "a look changes nothing"
    assert run_operator("init", cwd=tmp_path, db=path).returncode == 0
    assert run_operator("audit", "verify", db=path).returncode == 0


def test_urls_that_lead_nowhere() -> None:
    url = f"postgresql://me:hidden-word@127.0.0.1:{free_port()}/x"
    for said in (
        sentence(run_operator("tickets", "list", db=url)),
        sentence(run_operator("tickets", "list", db="mysql://me:hidden-word@x/y"), 2),
    ):
        assert "hidden-word" not in said


def test_a_read_only_database() -> None:
    """Really read-only: root may write everything, so the command runs without that privilege."""
    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(_make(folder / "operator.db"))
        for path in (folder, *folder.iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        for words in ("tickets list", "tickets open a b", "worker run --until-idle"):
            done = subprocess.run(
                [sys.executable, "-m", "operator_core", "--db", str(folder / "operator.db"), *words.split()],
                env=operator_environment({"ANTHROPIC_API_KEY": "x"}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                preexec_fn=obey_permissions,
            )
            assert "is read-only" in sentence(done)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def obey_permissions() -> None:
    """Give up what lets root ignore the permissions of files; takes effect with the next program."""
    if os.geteuid() == 0:
        library = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


async def _make(path: Path) -> None:
    async with Database.open(path) as database:
        await TicketDB(database).open_ticket("disk-full", "The disk is full.")


FULL_DISK = """
operator() { python3 -m operator_core --db /mnt/operator.db "$@"; }
operator tickets open first "It was there before." || exit 90
dd if=/dev/zero of=/mnt/ballast bs=4096 2>/dev/null
operator tickets open second "$(head -c 60000 /dev/zero | tr '\\0' x)"
echo "exit code $?"
rm /mnt/ballast
operator tickets list && operator audit verify
"""


@pytest.mark.usefixtures("require_bubblewrap")
def test_a_full_disk() -> None:
    """A real one: a file system of two megabytes that is filled to the last page."""
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--size", str(2 << 20), "--tmpfs", "/mnt", "bash", "-c", FULL_DISK],
        env=operator_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "exit code 1" in done.stdout, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("Error: The disk under /mnt/operator.db is full")
    assert "It was there before." in done.stdout
    assert "xxxx" not in done.stdout
    assert "The journal is intact" in done.stdout


@pytest.mark.parametrize("action", ["show", "hold", "unhold", "resolve", "cancel", "reopen"])
def test_no_such_ticket(store: str, action: str) -> None:
    assert "no ticket #99" in sentence(run_operator("tickets", action, "99", db=store))


def test_no_such_session(store: str) -> None:
    for words in ("sessions show nope", "sessions tail nope", "audit export nope", "audit verify --session nope"):
        assert "no session nope" in sentence(run_operator(*words.split(), db=store))


def test_a_transition_that_is_not_allowed(store: str) -> None:
    assert "reopen" in run_operator("tickets", "--help").stdout
    said = sentence(run_operator("tickets", "reopen", "1", db=store))
    assert "#1" in said
    assert ticket(store).status == "open"


# ---- the configuration and the command line


def test_unknown_and_bad_configuration(tmp_path: Path, store: str) -> None:
    path = tmp_path / "operator.toml"
    for text, word in (
        ("[modle]\nmodel = 'x'", "modle"),
        ("[model]\nmodle = 'x'", "model.modle"),
        ("[limits]\nturns = 'many'", "limits.turns"),
        ("[limits\n", "TOML"),
        ("[[subject]]\nname = 'a'\n[[subject]]\nname = 'a'", "unique"),
    ):
        path.write_text(text)
        for words in (["tickets", "list"], ["config", "show"], ["worker", "run", "--until-idle"]):
            assert word in sentence(run_operator(*words, "--config", str(path), db=store), 2)
        done = run_operator("doctor", "--config", str(path))
        assert (done.returncode, word in done.stdout) == (1, True)
    assert "missing.toml" in sentence(run_operator("config", "show", "--config", "missing.toml", cwd=tmp_path), 2)
    unknown = run_operator("config", "show", env={"OPERATOR_MODLE__MODEL": "x"})
    assert "OPERATOR_MODLE__MODEL" in sentence(unknown, 2)


def test_wrong_command_lines(store: str) -> None:
    for words, word in (
        ("ticket list", "ticket"),
        ("tickets lst", "lst"),
        ("tickets show", "ID"),
        ("tickets show one", "'ID'"),
        ("tickets list --status closed", "closed"),
        ("tickets open disk ", "message"),
        ("tickets list --nope", "--nope"),
        ("audit export x --format pdf", "pdf"),
        ("monitor run", "[[subject]]"),
        ("up", "[[subject]]"),
    ):
        assert word in sentence(run_operator(*words.split(" "), db=store, env={"ANTHROPIC_API_KEY": "x"}), 2)


# ---- the model service


@pytest.fixture
def picky_server() -> Iterator[ServerThread]:
    """Takes one key only."""
    with ScriptedServer(ScriptBrain([]), api_key="the-right-key").start_in_thread() as server:
        yield server


def model_env(base_url: str, key: str = "wrong-key-wrong-key") -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": key,
        "OPERATOR_MODEL__BASE_URL": base_url,
        "OPERATOR_MODEL__RETRY_DEADLINE_S": "0",
        "OPERATOR_MODEL__SUMMARIES": "deterministic",
        "OPERATOR_SANDBOX__BACKEND": "none",
    }


def test_a_refused_key(store: str, picky_server: ServerThread) -> None:
    env = model_env(picky_server.base_url)
    said = sentence(run_operator("worker", "run", "--until-idle", db=store, env=env))
    assert "refused the key in ANTHROPIC_API_KEY" in said
    assert "wrong-key" not in said
    assert ticket(store).status == "open", "the ticket is there for a worker with a valid key"
    done = run_operator("doctor", db=store, env=env)
    assert (done.returncode, "refused the key" in done.stdout, "wrong-key" in done.stdout) == (1, True, False)


def test_no_key_at_all(store: str) -> None:
    for words in ("worker run", "agent start"):
        assert "ANTHROPIC_API_KEY" in sentence(run_operator(*words.split(), db=store), 2)
    assert ticket(store).status == "open"


def test_a_model_endpoint_that_is_down(store: str) -> None:
    env = model_env(f"http://127.0.0.1:{free_port()}")
    done = run_operator("doctor", db=store, env=env)
    assert (done.returncode, "cannot be reached" in done.stdout) == (1, True)
    assert "Traceback" not in done.stdout + done.stderr
    done = run_operator("worker", "run", "--until-idle", db=store, env=env)
    assert "Traceback" not in done.stdout + done.stderr
    assert "cannot be reached" in sentence(done, 1)
    assert ticket(store).status == "open"  # an outage is no ticket's fault: the next worker goes on with it


def test_an_unknown_model(store: str) -> None:
    from operator_core.scripted import Failure

    with ScriptedServer(ScriptBrain([Failure(404, "model: nope")] * 3)).start_in_thread() as server:
        env = {**model_env(server.base_url, "some-key"), "OPERATOR_MODEL__MODEL": "nope"}
        done = run_operator("doctor", db=store, env=env)
        assert (done.returncode, "does not know 'nope'" in done.stdout) == (1, True)


# ---- sandbox and monitor


def without_bubblewrap(tmp_path: Path) -> dict[str, str]:
    """A PATH on which everything that is needed is found, but bubblewrap is not."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "python3", "cat", "env", "git", "tail", "sed", "sleep", "touch"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return {"PATH": str(folder)}


def test_no_bubblewrap(store: str, tmp_path: Path) -> None:
    env = {**without_bubblewrap(tmp_path), "ANTHROPIC_API_KEY": "x"}
    said = sentence(run_operator("worker", "run", "--until-idle", db=store, env=env))
    assert "Remedy" in said
    assert "bubblewrap" in said
    assert ticket(store).status == "open"
    assert "Remedy" in sentence(run_operator("demo", cwd=tmp_path, env=env))
    # Before the first ticket comes, which may be weeks later and at night.
    (tmp_path / "operator.toml").write_text(
        '[[subject]]\nname = "a"\n[[subject.invariant]]\nname = "b"\nprobe = { type = "command", command = "true" }\n'
    )
    for words in (["worker", "run"], ["agent", "start"], ["up"]):
        assert "Remedy" in sentence(run_operator(*words, db=str(tmp_path / "new.db"), cwd=tmp_path, env=env))
    done = run_operator("doctor", db=store, env=env)
    assert (done.returncode, "Remedy" in done.stdout) == (1, True)


def test_doctor_finds_what_nobody_would_look_at(store: str, tmp_path: Path) -> None:
    (tmp_path / "operator.toml").write_text(
        '[[subject]]\nname = "a"\nworkspace = "."\n'
        '[[subject.invariant]]\nname = "blind"\n'
        '[[subject.invariant]]\nname = "sighted"\nprobe = { type = "command", command = "true" }\n'
        'protect = { files = ["operator.toml", "limits.jsn"] }\n'
    )
    done = run_operator("doctor", "--json", db=store, cwd=tmp_path)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, found["probe blind"]["state"]) == (1, "wrong")
    assert "probe sighted" in found
    assert found["protect sighted"]["state"] == "warning"
    assert found["protect sighted"]["detail"].startswith("limits.jsn is not there")


def test_an_invariant_that_never_answers(store: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path, url = tmp_path / "operator.toml", f"http://127.0.0.1:{silent.getsockname()[1]}/"
        path.write_text(
            f"""
            [[subject]]
            name = "shop"
            [[subject.invariant]]
            name = "shop-is-up"
            probe = {{ type = "http", url = "{url}", value = "ok", timeout_s = 0.3 }}
            """
        )
        done = run_operator("monitor", "run", "--once", "--config", str(path), db=store)
        assert (done.returncode, done.stderr) == (0, "")
        assert "1 unknown" in done.stdout
        assert "shop-is-up" in done.stdout
        assert "0.3 s" in done.stdout
        done = run_operator("doctor", "--config", str(path), db=store)
        assert (done.returncode, "could not look" in done.stdout) == (1, True)
    assert len(run_operator("tickets", "list", db=store).stdout.splitlines()) == 2, "unknown is not broken: no ticket"


# ---- the process itself


def test_a_reader_that_goes_away(store: str) -> None:
    command = f"'{sys.executable}' -m operator_core --db '{store}' config show | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=operator_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_output_that_cannot_be_written(store: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "operator_core", "--db", store, "tickets", "list"],
            env=operator_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: There is no space left")
    assert done.stderr.count("\n") == 1


def test_interrupt(store: str, tmp_path: Path) -> None:
    """A command that waits, here for the model, ends at once and says so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = operator_environment(model_env(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with subprocess.Popen(
            [sys.executable, "-m", "operator_core", "--db", store, "doctor"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:
                child.send_signal(signal.SIGINT)
                output, errors = child.communicate(timeout=30)
        assert (child.returncode, output, errors) == (130, "", "Interrupted.\n")


def test_what_nobody_foresaw_is_a_sentence_and_a_file(tmp_path: Path) -> None:
    code = """
import sys
from operator_core.cli.failures import guarded
def run():
    secret = "sk-ant-api03-abcdefghijklmnop"
    raise KeyError(f"\\x1b[31mboom {secret}\\nsecond line")
sys.exit(guarded(run))
"""

    def fail(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=operator_environment({"HOME": str(tmp_path), **env}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    said = sentence(fail())
    assert "KeyError" in said
    assert "this is a bug" in said
    assert "\x1b" not in said
    (details,) = (tmp_path / ".operator" / "errors").iterdir()
    assert str(details) in said
    assert "Traceback" in details.read_text()
    assert "sk-ant-api03" not in said + details.read_text()
    assert details.stat().st_mode & 0o077 == 0
    loud = fail(OPERATOR_DEBUG="1")
    assert loud.returncode == 1
    assert "Traceback" in loud.stderr
    assert "sk-ant-api03" not in loud.stderr
