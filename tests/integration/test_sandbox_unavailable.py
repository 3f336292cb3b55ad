"""Where bubblewrap cannot work, ``auto`` refuses with the remedy; ``none`` says what it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import operator_core
from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.bubblewrap.diagnosis import diagnose


async def test_auto_refuses_without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox = open_sandbox("auto", Policy(tmp_path), session_dir=tmp_path / "s")
    with pytest.raises(
        SandboxUnavailable, match=r"not installed.*Remedy: install it with `apt-get install bubblewrap`"
    ):
        await sandbox.start()
    assert not (tmp_path / "s").exists()
    with pytest.raises(SandboxError):
        await sandbox.exec("true")


NO_USER_NAMESPACES = """
import asyncio, sys
from pathlib import Path
from operator_core.errors import SandboxUnavailable
from operator_core.sandbox import Policy, open_sandbox
sandbox = open_sandbox("auto", Policy(Path(sys.argv[1])), session_dir=Path(sys.argv[1], "s"))
try:
    asyncio.run(sandbox.start())
except SandboxUnavailable as error:
    print(error.reason)
    print(error.remedy)
"""


@pytest.mark.usefixtures("require_bubblewrap")
def test_auto_refuses_without_user_namespaces(tmp_path: Path) -> None:
    """In a namespace of its own, so that nothing changes for this machine."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    off = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", off, "sh", sys.executable, "-c", NO_USER_NAMESPACES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    reason, remedy = done.stdout.splitlines()
    assert "namespace" in reason
    assert "sysctl -w user.max_user_namespaces=" in remedy


def test_remedies() -> None:
    assert "upgrade" in diagnose("bwrap: Unknown option --size")[1]
    assert "bash" in diagnose("bwrap: execvp bash: No such file or directory")[1]
    reason, remedy = diagnose("bwrap: something new")
    assert "something new" in reason
    assert remedy


async def test_none_is_honest(tmp_path: Path) -> None:
    sandbox = open_sandbox("none", Policy(tmp_path), session_dir=tmp_path / "s")
    report = await sandbox.start()
    assert (sandbox.name, report.level) == ("none", "open")
    assert "verified" not in {control.state for control in report.controls.values()}
    assert report.controls["filesystem.write"].state == "not_enforced"
    assert any("no sandbox" in text for text in report.warnings)
    await sandbox.close()


AS_USER = """
import asyncio, json, os, sys
from pathlib import Path
base = Path(sys.argv[1])
os.environ["HOME"] = str(base)
from operator_core.sandbox import Limits, Policy, open_sandbox
async def main():
    sandbox = open_sandbox("auto", Policy(base / "ws", limits=Limits(procs=40)), session_dir=base / "s")
    report = await sandbox.start()
    await sandbox.write_file("bomb.py", b"import os, time\\nfor n in range(100):\\n    os.fork() or time.sleep(30)\\n")
    bomb = await sandbox.exec("python3 bomb.py", timeout=10)
    made = await sandbox.exec("touch made; id -u; mkdir -p ~/a/b; touch ~/a/b/x; chmod 0 ~/a/b ~/a")
    await sandbox.close()
    print(json.dumps([report.to_dict(), bomb.stderr.text(), made.stdout.text()]))
asyncio.run(main())
"""


@pytest.mark.usefixtures("require_bubblewrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_an_ordinary_user() -> None:
    """The recommended way to run; the interpreter must be readable for the other user."""
    user = 61234
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        (base / "ws").mkdir()
        python = "/usr/bin/python3"
        probe = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if not Path(python).exists() or subprocess.run(probe, check=False).returncode:
            pytest.skip("no system Python 3.11 that an ordinary user can run")
        shutil.copytree(Path(operator_core.__file__).parent, base / "lib" / "operator_core")
        subprocess.run(["chown", "-R", str(user), name], check=True)
        done = subprocess.run(
            [python, "-c", AS_USER, name],
            env={"PYTHONPATH": str(base / "lib"), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            user=user, group=user, extra_groups=[], cwd="/", capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report, bomb, made = json.loads(done.stdout)
        assert report["level"] == "isolated"
        assert "user" not in report["controls"]
        assert report["controls"]["limits.procs"]["state"] == "verified"
        assert "BlockingIOError" in bomb
        assert made == "1000\n"
        assert not (base / "s").exists()
        assert (base / "ws" / "made").stat().st_uid == user
