"""Attacks on a sandbox, made from inside of it when a session starts. What they find is the report.

One run of one bash script (about 80 ms). A probe that does not answer counts as *could not look*, never as held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from operator_core.clock import monotonic, new_id
from operator_core.errors import SandboxError
from operator_core.sandbox.environment import BASE
from operator_core.sandbox.layout import Layout
from operator_core.sandbox.linux.seccomp import system_call
from operator_core.sandbox.mounts import followed
from operator_core.sandbox.policy import Policy
from operator_core.sandbox.protocol import ExecResult
from operator_core.sandbox.report import Control, Level, Report
from operator_core.sandbox.runner import finish_unbroken
from operator_core.sandbox.selftest.findings import Evidence, judge, parse
from operator_core.sandbox.selftest.promise import Promise

__all__ = ["UNLISTED", "examine"]

UNLISTED = "self-test.operator.invalid"
"""A host that is in no list; the egress proxy has to refuse it."""

_SOCKETS = (
    "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket", "/run/systemd/private",
)  # fmt: skip

_NO_PROXY: Mapping[str, str] = MappingProxyType({})

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
opens() { [ -b "$1" ] && { : <"$1"; } 2>/dev/null; }
exists() { [ -e "$1" ]; }
connects() { { : <"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; }

each write appends /usr/.operator /etc/.operator /etc/passwd /.operator /bin/bash
each read reads /etc/shadow /etc/gshadow /etc/sudoers
for p in "$OP_CANARY" "/proc/1/root$OP_CANARY" "/proc/1/cwd$OP_CANARY"; do
  x=; { read -r x <"$p"; } 2>/dev/null; say canary value "$x"
done
for p in "$OP_CANARY" "/proc/1/root$OP_CANARY"; do { echo broken >"$p"; } 2>/dev/null; done
each hidden exists $OP_HIDDEN
each devices opens /dev/*
each kernel_memory reads /proc/kcore /proc/kmsg /dev/mem /dev/kmsg
for n in pid mnt user ipc uts net; do say "ns_$n" value "$(readlink "/proc/self/ns/$n")"; done
set -- /proc/[0-9]*; say processes value $#
each sysctl appends /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches /proc/sysrq-trigger
command -v perl >/dev/null || each sockets is_socket $OP_SOCKETS
each loopback connects "$OP_PORT"
if [ -n "$OP_PROXY" ] && { exec 3<>"/dev/tcp/127.0.0.1/$OP_PROXY"; } 2>/dev/null; then
  printf 'CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n' "$OP_UNLISTED" "$OP_UNLISTED" >&3
  x=; read -r -t 5 x <&3; say egress value "${x%$'\r'}"; exec 3>&-
fi
x=; while read -r name _; do case $name in lo:|Inter-*|face*) ;; *) x=$x$name ;; esac; done </proc/net/dev
say interfaces value "$x"
x=; for p in /proc/[0-9]*/environ; do while IFS= read -r -d '' v; do
  case " $OP_NAMES " in *" ${v%%=*} "*) ;; *) x=${v%%=*} ;; esac; done <"$p"; done 2>/dev/null
[ -r /proc/self/environ ] && say environ value "$x"
while read -r k v _; do case $k in CapEff:|CapPrm:|CapBnd:|NoNewPrivs:|Seccomp:) say "$k" value "$v" ;; esac
done </proc/self/status
t=${TMPDIR:-/tmp}/.operator-self-test; : >"$t"; chmod 4755 "$t" 2>/dev/null
if [ ! -e "$t" ]; then say setuid value missing; elif [ -u "$t" ]; then say setuid open "$t"; else say setuid held; fi
rm -f "$t"
for n in u d f n; do say "limit_$n" value "$(ulimit -$n)"; done
while read -r line; do case $line in *" /dev/shm "*) say shm value "${line##*size=}" ;; esac; done </proc/self/mountinfo
t=/dev/shm/.operator; if fallocate -l 4096 "$t" 2>/dev/null; then
  if fallocate -l "$OP_SHM" "$t" 2>/dev/null; then say shm_more open "$OP_SHM bytes"; else say shm_more held; fi
  rm -f "$t"
fi
x=; while IFS= read -r p; do [ -n "$p" ] || continue
  if [ -d "$p" ]; then appends "$p/.operator" && x=$p && rm -f "$p/.operator"; else appends "$p" && x=$p; fi
done <<<"$OP_PROTECTED"
say protected value "$x"
if [ -n "$OP_PROTECTED" ] && [ -d .git ] && [ ! -L .git ]; then
  if mv .git .git.operator 2>/dev/null; then mv .git.operator .git; say git open .git; else say git held; fi
fi
if command -v perl >/dev/null; then say perl value here; perl - "$OP_ABSTRACT" $OP_CALLS $OP_SOCKETS <<'PERL'
$| = 1;
my ($name, $unshare, $uring, $add_key, $prlimit, $mmap, @sockets) = @ARGV;
sub say_ { print "$_[0] ", ($_[1] ? "open $_[0]" : "held"), "\n" }
say_("vsock", socket(A, 40, 1, 0));
say_("packet", socket(B, 17, 3, 0));
say_("abstract", socket(C, 1, 1, 0) && connect(C, pack("Sa*", 1, "\0$name")));
my ($buffer, $type, $key) = ("\0" x 256, "user", "operator");
say_("io_uring", syscall($uring + 0, 8, $buffer) >= 0);
say_("keyring", syscall($add_key + 0, $type, $key, $buffer, 1, -2) >= 0);
say_("userns", syscall($unshare + 0, 0x10000000) == 0);
my ($reached) = grep { socket(D, 1, 1, 0) && connect(D, pack("Sa*", 1, "$_\0")) } @sockets;
print "sockets ", ($reached ? "open $reached" : "held"), "\n";
if (syscall($prlimit + 0, 0, 6, my $few = pack("QQ", 1, 1), 0) == 0) {
  my $child = fork; exit if defined $child && !$child;
  say_("procs", defined $child);
}
if (syscall($prlimit + 0, 0, 2, my $little = pack("QQ", 16 << 20, 16 << 20), 0) == 0) {
  say_("memory", syscall($mmap + 0, 0, 64 << 20, 3, 0x22, -1, 0) != -1);
}
PERL
fi
setsid sleep "$OP_MARKER" </dev/null >/dev/null 2>&1 &
sleep "$OP_MARKER" </dev/null >/dev/null 2>&1 &
say finished held
"""


async def examine(
    promise: Promise, policy: Policy, layout: Layout, try_: Try, *, proxy: Mapping[str, str] = _NO_PROXY
) -> Report:
    """Attack the sandbox and say what holds.

    Args:
        promise: What it says that it enforces.
        policy: What the sandbox is to do.
        layout: Its directories.
        try_: Runs a command in it, with further variables.
        proxy: The variables by which commands find the egress proxy; empty if there is none.

    Raises:
        SandboxError: An attack succeeded, a core control could not be tested, or the self-test did not finish.
    """
    started = monotonic()
    canary = layout.root / "canary"
    token, marker = new_id(), str(10**9 + int(new_id()[:7], 16))
    counting = asyncio.ensure_future(asyncio.to_thread(_hard_links, policy.workspace))
    try:
        with _listeners(token) as (port, abstract):
            canary.write_text(token)
            try:
                variables = _variables(promise, policy, canary, port, abstract, marker, proxy)
                result = await try_(_SCRIPT, variables)
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
        controls, holes = judge(promise, policy, answers, evidence)
        if holes:
            what = "; ".join(f"{name}: {reached}" for name, reached in holes.items())
            raise SandboxError(f"The sandbox does not hold here and is not used ({what}); run `operator doctor`.")
    finally:
        links = await finish_unbroken(counting)
    warnings = []
    if links:
        controls["workspace.hardlinks"] = Control(
            "partial", f"{links} files have a second name; writing to them in place also changes that one"
        )
        warnings.append(f"{links} files of the workspace have a second name (hard link), which may lie outside of it")
    if policy.network == "host":
        warnings.append("commands reach the host's network, its loopback services included")
    level: Level = "open" if policy.network == "host" else promise.level
    return Report(promise.backend, level, controls, (monotonic() - started) * 1000, tuple(warnings))


def _variables(
    promise: Promise, policy: Policy, canary: Path, port: int, abstract: str, marker: str, proxy: Mapping[str, str]
) -> dict[str, str]:
    home = os.path.expanduser("~")
    shown = [str(path) for path in (*policy.readable, *policy.writable, policy.seen(policy.workspace))]
    hidden = promise.hidden
    if hidden is None:
        secret = (f"{home}/.ssh", f"{home}/.aws", f"{home}/.bashrc", "/var/lib/docker", "/var/log", "/sys/kernel")
        hidden = tuple(
            path for path in secret if not any((path + "/").startswith(item.rstrip("/") + "/") for item in shown)
        )
    protected = [] if "workspace.exec_later" in promise.gaps else policy.paths(policy.protected)
    # A link to somewhere else is nothing to protect: the same name may lead to something writable in there.
    roots = (policy.workspace, *policy.writable)
    protected = [path for path in protected if any(followed(policy, path).is_relative_to(root) for root in roots)]
    calls = ("unshare", "io_uring_setup", "add_key", "prlimit64", "mmap")
    variables = {
        "OP_CANARY": str(canary),
        "OP_HIDDEN": " ".join(path for path in hidden if " " not in path),
        "OP_PORT": str(port),
        "OP_PROXY": str(urlsplit(proxy.get("HTTP_PROXY", "")).port or ""),
        "OP_UNLISTED": UNLISTED,
        "OP_ABSTRACT": abstract,
        "OP_SOCKETS": " ".join(_SOCKETS),
        "OP_CALLS": " ".join(str(system_call(name)) for name in calls),
        "OP_MARKER": marker,
        "OP_SHM": str(policy.limits.shm + 4096),
        "OP_PROTECTED": "\n".join(str(policy.seen(path)) for path in protected if path.exists()),
        "OP_NAMES": "",
    }
    names = {*BASE, *policy.env, *policy.env_passthrough, *variables, *proxy}
    names |= {"PATH", "HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "GIT_CONFIG_NOSYSTEM"}
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
