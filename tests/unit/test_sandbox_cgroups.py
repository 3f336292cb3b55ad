"""Where a control group can be made, and what is written there; a plain folder stands in for the second version."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from operator_core.sandbox.linux import cgroups
from operator_core.sandbox.linux.cgroups import CONTROLLERS, Group, Parent, find_parents
from operator_core.sandbox.policy import Limits


def test_where_a_group_can_be_made() -> None:
    own = "9:name=systemd:/\n8:pids:/a b\n4:memory,hugetlb:/docker/c1\n0::/\n"
    mounts = (
        "30 24 0:26 / /sys/fs/cgroup/pids rw,nosuid shared:9 - cgroup cgroup rw,pids\n"
        "31 24 0:27 /docker/c1 /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory,hugetlb\n"
        "32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "33 24 0:29 / / rw - ext4 /dev/vda rw\n"
    )
    found = find_parents(own, mounts)
    assert [(str(item.directory), item.controllers, item.unified) for item in found] == [
        ("/sys/fs/cgroup/pids/a b", ("pids",), False),
        ("/sys/fs/cgroup/mem ory", ("memory",), False),
    ]


def test_the_second_version() -> None:
    mounts = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
    found = find_parents("0::/system.slice/operator.service/worker\n", mounts)
    assert [str(item.directory) for item in found] == [
        "/sys/fs/cgroup/system.slice/operator.service/worker",
        "/sys/fs/cgroup/system.slice/operator.service",
    ]
    assert {item.controllers for item in found} == {CONTROLLERS}
    # Outside of what this container sees.
    assert find_parents("0::/../other\n", mounts) == []


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service, in which ours is the only other group."""
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "find_parents", lambda *_: [Parent(tmp_path, CONTROLLERS, True)])
    monkeypatch.setattr(cgroups, "_TRIES", 1)
    return tmp_path


async def test_a_group_that_was_given_to_us(service: Path) -> None:
    try:
        os.setxattr(service, "user.delegate", b"1")
    except OSError:
        pytest.skip("no extended attributes on this file system")
    group = Group()
    group.make(Limits(memory=1 << 30, procs=100))
    assert group.controllers == set(CONTROLLERS)
    assert group.thread is None
    assert not group.why_not
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids"
    (folder,) = group.folders
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {"memory.max": str(1 << 30), "memory.swap.max": "0", "pids.max": "164"}
    process = await asyncio.create_subprocess_exec("sleep", "60")
    group.add(process.pid)
    assert (folder / "cgroup.procs").read_text() == str(process.pid)
    await group.remove()
    assert await asyncio.wait_for(process.wait(), 5) == -9
    assert group.controllers == frozenset()


async def test_a_group_that_was_not_given_to_us(service: Path) -> None:
    group = Group()
    group.make(Limits())
    assert group.controllers == frozenset()
    assert all("Delegate=yes" in why for why in group.why_not.values())
    assert [path.name for path in service.iterdir()] == ["cgroup.subtree_control"]
    group.add(os.getpid())
    await group.remove()


def test_a_process_that_cannot_be_seen_is_not_ourselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says 0 for one of an outer PID namespace, and a signal to 0 is one to our own group."""
    (tmp_path / "cgroup.procs").write_text(f"0\n{os.getpid()}\n")
    killed: list[int] = []
    monkeypatch.setattr(cgroups, "signal_quietly", lambda pid, number: killed.append(pid))
    cgroups._remove(tmp_path)
    assert not killed
