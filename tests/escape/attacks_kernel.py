"""Using the kernel itself. What leaves no trace outside is proved by the attack's own word."""

from __future__ import annotations

from tests.escape.attack import KIT, Attack, claimed, told

__all__ = ["ATTACKS"]


_NO_FILE = "that machine has no such file"


def _own(name: str, command: str, idle: str = "") -> Attack:
    return Attack(name, f"{KIT} {command}", claimed, machine=True, idle=idle)


_SYSCTLS = "/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/hotplug /proc/sys/fs/suid_dumpable"

ATTACKS = [
    _own("a new mount", "mount"),
    _own("a mount by the newer calls", "mount_api"),
    Attack(
        "rights in a new user namespace",
        'unshare -Urm sh -c "mount -t tmpfs none /mnt && echo $SAY"',
        claimed,
        machine=True,
    ),
    _own("a user namespace by unshare(2)", "user_namespace"),
    _own("a user namespace by clone(2)", "clone"),
    _own("a user namespace by clone3(2)", "clone3"),
    _own("another root directory", "chroot"),
    Attack("the mounts of a process", f'{KIT} enter "$VICTIM"', told, with_victim=True, machine=True),
    Attack("a file by its number", f'{KIT} handle "$HANDLE_KIND" "$HANDLE"', told, machine=True),
    _own("settings that start programs as root", f"opens {_SYSCTLS}"),
    _own("settings of the network", "opens /proc/sys/net/ipv4/ip_forward /proc/sys/net/core/somaxconn"),
    _own("settings of the memory", "opens /proc/sys/vm/drop_caches /proc/sys/vm/overcommit_memory"),
    _own("the magic system request key", "opens /proc/sysrq-trigger", _NO_FILE),
    _own("switches in /sys", "opens /sys/kernel/mm/transparent_hugepage/enabled /sys/power/state"),
    _own("the kernel's log, to write", "opens /dev/kmsg"),
    _own("the kernel's memory, to write", "opens /dev/mem /dev/port", _NO_FILE),
    _own("the clock", "opens /dev/rtc0", _NO_FILE),
    _own("io_uring", "io_uring"),
    _own("performance counters", "perf"),
    _own("programs for the kernel (bpf)", "bpf"),
    _own("handling of page faults", "userfault"),
    _own("a key of one's own in the kernel", "new_key"),
    _own("a kernel module", "module", "that machine's kernel takes none"),
    _own("a restart of the machine", "reboot"),
    _own("the name of the machine", "host_name"),
    _own("the ports of the processor", "ports", "that machine's root may not"),
    Attack("comparing with a process", f"{KIT} compare", claimed, with_victim=True, machine=True),
]
