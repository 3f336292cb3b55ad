"""The attacks on the bubblewrap backend once more, by somebody who is not root: for most another path in the kernel."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.support import Unprivileged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="all of these tests run as an ordinary user already")


@pytest.mark.deep
@pytest.mark.usefixtures("require_bubblewrap")
def test_the_attacks_of_an_ordinary_user_fail_too(unprivileged: Unprivileged) -> None:
    files = ("tests/integration/test_sandbox_bubblewrap.py", "tests/integration/test_sandbox_shown_at.py")
    argv = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", "not early_kills", *files]
    done = unprivileged.run(sys.executable, *argv, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 40
