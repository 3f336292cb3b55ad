"""Attacks on a bubblewrap sandbox, made from inside of it when a session starts. What they find is the report.

One run of one bash script (about 80 ms). A probe that does not answer counts as *could not look*, never as held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from operator_core.clock import monotonic, new_id
from operator_core.errors import SandboxError
from operator_core.sandbox.environment import BASE
from operator_core.sandbox.findings import Evidence, judge, parse
from operator_core.sandbox.policy import Policy
from operator_core.sandbox.profile import Layout
from operator_core.sandbox.protocol import ExecResult
from operator_core.sandbox.report import Control, Level, Report
from operator_core.sandbox.seccomp import system_call

__all__ = ["examine"]

Try = Callable[[str, Mapping[str, str]], Awaitable[ExecResult]]

# Each line of output is "PROBE held", "PROBE open WHAT" or "PROBE value WHAT".
_SCRIPT = r"""
say() { printf '%s %s %s\n' "$1" "$2" "$3"; }
each() { # NAME TEST PATH...: the first path for which the test succeeds is a hole
  local name=$1 test=$2 p; shift 2
  for p; do if $test "$p" 2>/dev/null; then say "$name" open "$p"; return; fi; done
  say "$name" held
}
appends() { { : >>"$1"; } 2>/dev/null; }
reads() { local x; [ -f "$1" ] && { read -r -n 1 x <"$1"; } 2>/dev/null && [ -n "$x" ]; }
is_socket() { [ -S "$1" ]; }
is_block() { [ -b "$1" ]; }
exists() { [ -e "$1" ]; }
connects() { { : <"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; }

each write appends /usr/.operator /etc/.operator /etc/passwd /.operator /bin/bash
each read reads /etc/shadow /etc/gshadow /etc/sudoers
for p in "$OP_CANARY" "/proc/1/root$OP_CANARY" "/proc/1/cwd$OP_CANARY"; do
  x=; { read -r x <"$p"; } 2>/dev/null; say canary value "$x"
done
for p in "$OP_CANARY" "/proc/1/root$OP_CANARY"; do { echo broken >"$p"; } 2>/dev/null; done
each hidden exists $OP_HIDDEN
each devices is_block /dev/*
each kernel_memory reads /proc/kcore /proc/kmsg /dev/mem /dev/kmsg
for n in pid mnt user ipc uts net; do say "ns_$n" value "$(readlink "/proc/self/ns/$n")"; done
set -- /proc/[0-9]*; say processes value $#
each sysctl appends /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches /proc/sysrq-trigger
each sockets is_socket /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock \
  /run/dbus/system_bus_socket /var/run/dbus/system_bus_socket /run/systemd/private
each loopback connects "$OP_PORT"
x=; while read -r name _; do case $name in lo:|Inter-*|face*) ;; *) x=$x$name ;; esac; done </proc/net/dev
say interfaces value "$x"
x=; for p in /proc/[0-9]*/environ; do while IFS= read -r -d '' v; do
  case " $OP_NAMES " in *" ${v%%=*} "*) ;; *) x=${v%%=*} ;; esac; done <"$p"; done 2>/dev/null
if [ -r /proc/1/environ ]; then say environ value "$x"; else say environ value unreadable; fi
while read -r k v _; do case $k in CapEff:|CapPrm:|CapBnd:|NoNewPrivs:|Seccomp:) say "$k" value "$v" ;; esac
done </proc/self/status
t=/tmp/.operator-self-test; : >"$t"; chmod 4755 "$t" 2>/dev/null
if [ ! -e "$t" ]; then say setuid value missing; elif [ -u "$t" ]; then say setuid open "$t"; else say setuid held; fi
rm -f "$t"
for n in u d f n; do say "limit_$n" value "$(ulimit -$n)"; done
while read -r line; do case $line in *" /dev/shm "*) say shm value "${line##*size=}" ;; esac; done </proc/self/mountinfo
x=; while IFS= read -r p; do [ -n "$p" ] || continue
  if [ -d "$p" ]; then appends "$p/.operator" && x=$p; else appends "$p" && x=$p; fi
done <<<"$OP_PROTECTED"
say protected value "$x"
if [ -d .git ] && [ ! -L .git ]; then
  if mv .git .git.operator 2>/dev/null; then mv .git.operator .git; say git open .git; else say git held; fi
fi
if command -v perl >/dev/null; then say perl value here; perl - "$OP_ABSTRACT" $OP_CALLS <<'PERL'
my ($name, $unshare, $uring, $add_key) = @ARGV;
sub say_ { print "$_[0] ", ($_[1] ? "open $_[0]" : "held"), "\n" }
say_("vsock", socket(A, 40, 1, 0));
say_("packet", socket(B, 17, 3, 0));
say_("abstract", socket(C, 1, 1, 0) && connect(C, pack("Sa*", 1, "\0$name")));
my ($buffer, $type, $key) = ("\0" x 256, "user", "operator");
say_("io_uring", syscall($uring + 0, 8, $buffer) >= 0);
say_("keyring", syscall($add_key + 0, $type, $key, $buffer, 1, -2) >= 0);
say_("userns", syscall($unshare + 0, 0x10000000) == 0);
PERL
fi
setsid sleep "$OP_MARKER" </dev/null >/dev/null 2>&1 &
sleep "$OP_MARKER" </dev/null >/dev/null 2>&1 &
say finished held
"""


async def examine(backend: str, policy: Policy, layout: Layout, try_: Try) -> Report:
    """Attack the sandbox and say what holds.

    Args:
        backend: Name and version for the report.
        policy: What the sandbox is to do.
        layout: Its directories.
        try_: Runs a command in it, with further variables.

    Raises:
        SandboxError: An attack succeeded, a core control could not be tested, or the self-test did not finish.
    """
    started = monotonic()
    canary = layout.root / "canary"
    token, marker = new_id(), str(10**9 + int(new_id()[:7], 16))
    with _listeners(token) as (port, abstract):
        canary.write_text(token)
        try:
            result = await try_(_SCRIPT, _variables(policy, canary, port, abstract, marker))
            evidence = Evidence(
                written=canary.read_text() != token,
                read=token in result.stdout.text(),
                survived=await asyncio.to_thread(_survivor, marker),
                left=result.background,
            )
        finally:
            canary.unlink(missing_ok=True)
    answers = parse(result.stdout.text())
    if "finished" not in answers.held:
        why = result.stderr.text().strip()[-300:] or f"exit code {result.exit_code}"
        raise SandboxError(f"The self-test of the sandbox did not finish ({why}); run `operator doctor`.")
    controls, holes = judge(policy, answers, evidence)
    if holes:
        what = "; ".join(f"{name}: {reached}" for name, reached in holes.items())
        raise SandboxError(f"The sandbox does not hold here and is not used ({what}); run `operator doctor`.")
    links = await asyncio.to_thread(_hard_links, policy.workspace)
    if links:
        controls["workspace.hardlinks"] = Control(
            "partial", f"{links} files have a second name; writing to them in place also changes that one"
        )
    warnings = []
    if os.geteuid() == 0:
        warnings.append("commands have the kernel's user id 0; it is safer to start Operator as an ordinary user")
    if policy.network == "host":
        warnings.append("commands reach the host's network, its loopback services included")
    level: Level = "isolated" if policy.network == "none" else "open"
    return Report(backend, level, controls, (monotonic() - started) * 1000, tuple(warnings))


def _variables(policy: Policy, canary: Path, port: int, abstract: str, marker: str) -> dict[str, str]:
    home = os.path.expanduser("~")
    shown = [str(path) for path in (*policy.readable, *policy.writable, policy.seen(policy.workspace))]
    hidden = [
        path
        for path in (f"{home}/.ssh", f"{home}/.aws", f"{home}/.bashrc", "/var/lib/docker", "/var/log", "/sys/kernel")
        if not any((path + "/").startswith(item.rstrip("/") + "/") for item in shown)
    ]
    variables = {
        "OP_CANARY": str(canary),
        "OP_HIDDEN": " ".join(path for path in hidden if " " not in path),
        "OP_PORT": str(port),
        "OP_ABSTRACT": abstract,
        "OP_CALLS": " ".join(str(system_call(name)) for name in ("unshare", "io_uring_setup", "add_key")),
        "OP_MARKER": marker,
        "OP_PROTECTED": "\n".join(str(policy.seen(path)) for path in policy.paths(policy.protected) if path.exists()),
        "OP_NAMES": "",
    }
    names = {*BASE, *policy.env, *policy.env_passthrough, *variables}
    names |= {"PATH", "HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}
    return {**variables, "OP_NAMES": " ".join(sorted(names))}


@contextlib.contextmanager
def _listeners(token: str) -> Iterator[tuple[int, str]]:
    """Servers of the host that must not be reachable: one on loopback TCP, one on an abstract socket."""
    abstract = f"operator-self-test-{token[:12]}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(4)
        unix.bind("\0" + abstract)
        unix.listen(4)
        yield tcp.getsockname()[1], abstract


def _survivor(marker: str) -> bool:
    """Whether a process of the self-test outlived its call."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if marker.encode() in file.read().split(b"\0"):
                        return True
            except OSError:
                continue
    return False


def _hard_links(workspace: Path) -> int:
    """Files with a second name, among the first thousand entries: a look, not an audit."""
    found = 0
    seen = 0
    queue = [workspace]
    while queue and seen < 1000:
        try:
            with os.scandir(queue.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink > 1:
                        found += 1
        except OSError:
            continue
    return found
