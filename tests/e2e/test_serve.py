"""`operator serve` and `operator token` as a person runs them: first token, curl, a crash, and the end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support import free_port, run_operator, wait_until
from tests.support.processes import operator_environment


class Running:
    """A process that serves."""

    def __init__(self, child: subprocess.Popen[bytes], output: Path) -> None:
        self.child = child
        self.output = output

    @property
    def text(self) -> str:
        return self.output.read_text()

    def url(self) -> str:
        found = wait_until(
            lambda: re.search(r"Console and API at (http://\S+)", self.text) or self.child.poll() is not None,
            30,
            what="the server says where it is",
        )
        assert isinstance(found, re.Match), self.text
        return found[1]


@contextmanager
def operator(folder: Path, *words: str, config: str = "") -> Iterator[Running]:
    (folder / "operator.toml").write_text(config)
    output = folder / f"output-{len(list(folder.glob('output-*')))}"
    with output.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "operator_core", "--db", str(folder / "operator.db"), *words],
            cwd=folder,
            env=operator_environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Running(child, output)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(30)


def first_token(text: str) -> str:
    (token,) = re.findall(r"^(op_[0-9a-f]{12}_[A-Za-z0-9_-]{43})$", text, re.MULTILINE)
    return str(token)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_from_the_first_start_to_the_end(tmp_path: Path) -> None:
    with operator(tmp_path, "serve", "--port", "0") as serving:
        url = serving.url()
        token = first_token(serving.text)
        assert httpx2.get(f"{url}/api/v1/me").status_code == 401
        me = httpx2.get(f"{url}/api/v1/me", headers=bearer(token)).json()
        assert (me["name"], me["role"]) == ("first", "admin")
        ready = httpx2.get(f"{url}/readyz").json()
        assert (ready["ready"], ready["courier"]) == (True, "ok")
        made = run_operator(
            "token", "create", "ci", "--role", "viewer", "--expires", "30d", "--json", db=tmp_path / "operator.db"
        )
        ci = json.loads(made.stdout)
        assert httpx2.get(f"{url}/api/v1/board", headers=bearer(ci["token"])).status_code == 200
        assert httpx2.get(f"{url}/api/v1/tokens", headers=bearer(ci["token"])).status_code == 403
        listed = run_operator("token", "list", db=tmp_path / "operator.db").stdout
        assert ci["id"] in listed
        assert ci["token"] not in listed
        assert run_operator("token", "revoke", "ci", db=tmp_path / "operator.db").returncode == 0
        assert httpx2.get(f"{url}/api/v1/board", headers=bearer(ci["token"])).status_code == 401
        serving.child.send_signal(signal.SIGTERM)
        assert serving.child.wait(30) == 0, serving.text
        assert "Traceback" not in serving.text
        assert ci["token"] not in serving.text
    with operator(tmp_path, "serve", "--port", "0") as again:
        url = again.url()
        assert "op_" not in again.text, "the first token is shown once"
        assert httpx2.get(f"{url}/api/v1/me", headers=bearer(token)).status_code == 200
    checked = run_operator("audit", "verify", db=tmp_path / "operator.db")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_with_curl(tmp_path: Path) -> None:
    with operator(tmp_path, "serve", "--port", "0") as serving:
        url = serving.url()
        header = f"Authorization: Bearer {first_token(serving.text)}"
        said = subprocess.run(
            ["curl", "-fsS", "-H", header, f"{url}/api/v1/board"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert json.loads(said.stdout)["needs_me"] == 0


def test_a_server_that_is_killed_leaves_nothing_half(tmp_path: Path) -> None:
    port = free_port()
    with operator(tmp_path, "serve", "--port", str(port)) as serving:
        url = serving.url()
        token = first_token(serving.text)
        ended: list[BaseException | None] = []
        begun = threading.Semaphore(0)

        def listen() -> None:
            try:
                with httpx2.stream("GET", f"{url}/api/v1/stream", headers=bearer(token), timeout=60) as stream:
                    for _ in stream.iter_raw():
                        begun.release()
                ended.append(None)
            except httpx2.HTTPError as error:
                ended.append(error)

        listeners = [threading.Thread(target=listen) for _ in range(5)]
        for listener in listeners:
            listener.start()
        for _ in listeners:
            assert begun.acquire(timeout=30)
        made = httpx2.post(
            f"{url}/api/v1/tokens", json={"name": "kept", "role": "viewer"}, headers=bearer(token)
        ).json()
        serving.child.send_signal(signal.SIGKILL)
        for listener in listeners:
            listener.join(30)
        assert len(ended) == 5
    with operator(tmp_path, "serve", "--port", str(port)) as again:
        url = again.url()
        assert httpx2.get(f"{url}/api/v1/me", headers=bearer(made["token"])).json()["name"] == "kept"
        with httpx2.stream("GET", f"{url}/api/v1/stream", headers=bearer(token), timeout=30) as stream:
            assert stream.status_code == 200
    assert run_operator("audit", "verify", db=tmp_path / "operator.db").returncode == 0


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    with operator(tmp_path, "serve", "--port", "0") as serving:
        port = serving.url().rpartition(":")[2]
        for words, said in (
            (("serve", "--port", port), rf"Error: Port {port} of 127\.0\.0\.1 is in use; .*\."),
            (("mcp", "--http", "--port", port), r"Error: .* is in use; .* choose another with --port\."),
            (("serve", "--host", "not a host"), r"Error: The address 'not a host' is not known here; .*\."),
            (("serve", "--port", "70000"), r"Error: .*65535.*\."),
            (("token", "create", "x", "--role", "king"), r"Error: .*king.*\."),
            (("token", "create", "x", "--role", "viewer", "--expires", "soon"), r"Error: 'soon' is no time; .*\."),
            (("token", "create", "<x>", "--role", "viewer"), r"Error: A token's name .*\."),
            (("token", "revoke", "nobody"), r"Error: There is no such token; .*\."),
        ):
            done = run_operator(*words, db=tmp_path / "other.db" if words[0] == "serve" else tmp_path / "operator.db")
            assert done.returncode in (1, 2), words
            assert re.fullmatch(said + "\n", done.stderr), done.stderr
            assert done.stdout == ""
    assert not (tmp_path / "other.db").exists(), "a start that fails leaves nothing behind"


WATCHED = """
[model]
engine = "scripted"
base_url = "http://127.0.0.1:9"
model = "scripted-small"
[sandbox]
backend = "none"
[[subject]]
name = "shop"
workspace = "{folder}/workspace"
[[subject.invariant]]
name = "shop-is-open"
description = "There must be a sign."
probe = {{ type = "command", command = "true" }}
"""


def test_up_serves_beside_its_work(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    config = WATCHED.format(folder=tmp_path)
    with operator(tmp_path, "up", "--port", "0", config=config) as up:
        url = up.url()
        token = first_token(up.text)
        workers = wait_until(lambda: httpx2.get(f"{url}/api/v1/workers", headers=bearer(token)).json(), 30)
        assert workers[0]["alive"]
        # Another one beside it works without a console, and says so.
        port = url.rpartition(":")[2]
        with operator(tmp_path, "up", "--port", port, config=config) as other:
            wait_until(lambda: "The work goes on without the console." in other.text, 30)
            wait_until(lambda: len(httpx2.get(f"{url}/api/v1/workers", headers=bearer(token)).json()) == 2, 30)
            other.child.send_signal(signal.SIGINT)
            assert other.child.wait(60) == 0, other.text
        up.child.send_signal(signal.SIGTERM)
        assert up.child.wait(60) == 0, up.text
        assert "Traceback" not in up.text


@pytest.mark.deep
@pytest.mark.slow
def test_the_demo_can_be_looked_at(tmp_path: Path) -> None:
    with operator(tmp_path, "demo", "--act", "3", "--keep", "--folder", "play") as demo:
        url = demo.url()
        token = first_token(demo.text)
        # Already while it plays.
        board = httpx2.get(f"{url}/", headers={**bearer(token), "Accept": "text/html"})
        assert (board.status_code, "<h1" in board.text) == (200, True)
        wait_until(lambda: demo.text.rstrip().endswith(token), 100, what="the token, again, at the very end")
        assert f"The console goes on at {url} until Ctrl-C" in demo.text
        assert "Its services and agents are gone; what remains" in demo.text
        assert f"--db {tmp_path}/operator.db audit verify" in demo.text, "hints of a report work as they stand"
        (ticket,) = httpx2.get(f"{url}/api/v1/tickets", headers=bearer(token)).json()["items"]
        assert (ticket["status"], ticket["reason"]) == ("resolved", "verified")
        demo.child.send_signal(signal.SIGINT)
        assert demo.child.wait(30) == 0, demo.text
        assert "Traceback" not in demo.text
