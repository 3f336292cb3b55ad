"""The filter, run by a small interpreter of classic BPF, for both processors."""

from __future__ import annotations

import struct

import pytest

from operator_core.sandbox.linux.seccomp import SUPPORTED, build_filter, system_call

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    data = struct.pack(
        "<iIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6]
    )
    program = list(struct.iter_unpack("<HBBI", build_filter(machine)))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x20:
            loaded = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: loaded == value, 0x45: bool(loaded & value), 0x35: loaded >= value}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", sorted(SUPPORTED))
class TestFilter:
    def test_ordinary_calls_pass(self, machine: str) -> None:
        read, getpid = {"x86_64": (0, 39), "aarch64": (63, 172)}[machine]
        assert verdict(machine, read) == verdict(machine, getpid) == ALLOW

    @pytest.mark.parametrize(
        "name",
        ["unshare", "setns", "mount", "umount2", "io_uring_setup", "keyctl", "add_key", "bpf", "userfaultfd", "chroot",
         "perf_event_open", "open_tree", "move_mount", "kexec_load", "reboot", "open_by_handle_at"],
    )  # fmt: skip
    def test_kernel_interfaces_are_refused(self, machine: str, name: str) -> None:
        assert verdict(machine, system_call(name, machine)) == EPERM

    @pytest.mark.parametrize("name", ["clone3", "openat2"])
    def test_what_cannot_be_inspected_does_not_exist(self, machine: str, name: str) -> None:
        assert verdict(machine, system_call(name, machine)) == ENOSYS

    def test_processes_yes_new_user_namespaces_no(self, machine: str) -> None:
        clone = system_call("clone", machine)
        assert verdict(machine, clone, 0x01200011) == ALLOW
        assert verdict(machine, clone, 0x10000011) == EPERM

    @pytest.mark.parametrize("call", ["socket", "socketpair"])
    def test_socket_families(self, machine: str, call: str) -> None:
        number = system_call(call, machine)
        allowed = [family for family in range(64) if verdict(machine, number, family) == ALLOW]
        assert allowed == [1, 2, 10, 16]
        assert verdict(machine, number, 40) == EAFNOSUPPORT

    def test_typing_into_the_terminal(self, machine: str) -> None:
        ioctl = system_call("ioctl", machine)
        assert verdict(machine, ioctl, 1, 0x5412) == verdict(machine, ioctl, 1, 0x541C) == EPERM
        # The kernel looks at the lower half only, so the filter must too.
        assert verdict(machine, ioctl, 1, 0x1_0000_5412) == EPERM
        assert verdict(machine, ioctl, 1, 0x5401) == verdict(machine, ioctl, 0x5412, 0x5413) == ALLOW

    @pytest.mark.parametrize(
        ("name", "place"), [("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mknodat", 2), ("openat", 3)]
    )
    def test_setuid_and_setgid_bits(self, machine: str, name: str, place: int) -> None:
        number = system_call(name, machine)
        for mode, expected in ((0o755, ALLOW), (0o1777, ALLOW), (0o4755, EPERM), (0o2755, EPERM)):
            assert verdict(machine, number, *[0] * place, mode) == expected

    def test_another_architecture_ends_the_process(self, machine: str) -> None:
        assert verdict(machine, 0, arch=0x40000003) == KILL


def test_setuid_bits_of_the_old_calls() -> None:
    for number, place in ((90, 1), (85, 1), (133, 1), (2, 2)):  # chmod, creat, mknod, open
        assert verdict("x86_64", number, *[0] * place, 0o4755) == EPERM
        assert verdict("x86_64", number, *[0] * place, 0o755) == ALLOW


def test_the_x32_numbers_end_the_process() -> None:
    assert verdict("x86_64", 0x40000000 + 272) == KILL
