"""Somebody who is not root is really not root, and what is theirs goes away."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import Unprivileged


def test_they_have_no_right_of_ours(unprivileged: Unprivileged, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ours")
    secret.chmod(0o600)
    code = (
        "import os, sys; status = open('/proc/self/status').read(); print(os.getuid(), os.geteuid(), os.getgroups());"
        "print(status.partition('CapEff:')[2].split()[0]); print(open(sys.argv[1]).read())"
    )
    done = unprivileged.python(code, str(secret))
    if os.geteuid() != 0:
        pytest.skip("the tests do not run as root, so everything is ours")
    assert done.stdout.splitlines() == [f"{unprivileged.uid} {unprivileged.uid} []", "0" * 16]
    assert "PermissionError" in done.stderr


def test_they_have_the_checkout_and_the_interpreter(unprivileged: Unprivileged) -> None:
    done = unprivileged.python("import operator_core, tests.support, sys; print(sys.prefix)")
    assert done.stdout.strip() == sys.prefix


def test_none_of_our_variables_reaches_them(unprivileged: Unprivileged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "ours")
    assert "SOME_TOKEN" not in unprivileged.run("env").stdout


def test_the_process_id_is_that_of_the_program(unprivileged: Unprivileged) -> None:
    with unprivileged.start(sys.executable, "-c", "import time; time.sleep(60)") as process:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(timeout=10) == -signal.SIGKILL


def test_their_folder_is_theirs_and_is_removed() -> None:
    with Unprivileged() as user:
        made = user.make("ws")
        (made / "file").write_text("ours")
        user.give(made)
        assert user.python("import sys; open(sys.argv[1], 'a').write('x')", str(made / "file")).returncode == 0
        assert (made / "file").stat().st_uid == user.uid
    assert not user.folder.exists()
