"""From the answers of the self-test's probes to controls: what is verified, and what is open."""

from __future__ import annotations

import os
from typing import NamedTuple

from operator_core.sandbox.policy import Policy
from operator_core.sandbox.report import Control
from operator_core.sandbox.selftest.promise import Promise

__all__ = ["CORE", "Answers", "Evidence", "Findings", "judge", "parse"]

CORE = (
    "filesystem.write", "filesystem.read", "process.isolation", "kill_tree", "network", "unix_sockets", "secrets.env",
    "privileges", "kernel.sysctl", "setuid",
)  # fmt: skip
"""Without these there is no isolation: one of them open, or not answered, and the session does not start."""

_SURFACE = ("userns", "packet", "io_uring", "keyring")


class Answers(NamedTuple):
    """What the probes said.

    Attributes:
        open: By probe, what an attack reached.
        held: Probes whose attack failed.
        value: By probe, what was observed.
    """

    open: dict[str, str]
    held: set[str]
    value: dict[str, str]

    def attack(self, *names: str) -> tuple[bool | None, str]:
        """Whether all of these attacks failed (None: one did not answer, none succeeded), and what was reached."""
        reached = [self.open[name] for name in names if name in self.open]
        if reached:
            return False, ", ".join(reached)
        return (True if self.held.issuperset(names) else None), ""


class Evidence(NamedTuple):
    """What was seen from outside, after the self-test.

    Attributes:
        written: A file of the host had been changed.
        read: The secret of a file of the host was in the output.
        survived: A process had outlived its call.
        left: How many processes the self-test had left behind when its shell ended.
    """

    written: bool
    read: bool
    survived: bool
    left: int


class Findings(NamedTuple):
    """The controls, and those that are open although the policy wants them closed, with what was reached."""

    controls: dict[str, Control]
    holes: dict[str, str]


def parse(output: str) -> Answers:
    """Read lines of ``PROBE held``, ``PROBE open WHAT`` and ``PROBE value WHAT``; anything else is no answer."""
    answers = Answers({}, set(), {})
    for line in output.splitlines():
        name, _, rest = line.partition(" ")
        kind, _, detail = rest.partition(" ")
        if kind == "open":
            answers.open[name] = detail.strip()
        elif kind == "held":
            answers.held.add(name)
        elif kind == "value":
            answers.value[name] = detail.strip()
    return answers


def judge(promise: Promise, policy: Policy, answers: Answers, evidence: Evidence) -> Findings:
    """Decide every control.

    Args:
        promise: What the backend says that it enforces.
        policy: What is wanted; with the host's network, being able to reach it is no hole.
        answers: From inside.
        evidence: From outside.
    """
    found = Findings({}, {})
    value = answers.value

    def decide(name: str, how: str, *attacks: str, wrong: str = "", unanswered: bool = False) -> None:
        if name in promise.gaps or name in promise.found:
            found.controls[name] = promise.gaps.get(name) or promise.found[name]
            return
        held, reached = answers.attack(*attacks)
        problem = ", ".join(item for item in (reached, wrong) if item)
        if problem:
            found.controls[name] = Control("not_enforced", f"open: {problem}")
            found.holes[name] = problem
        elif held is None or unanswered:
            found.controls[name] = Control("unavailable", "a probe did not answer")
            if name in (*CORE, "vsock"):
                found.holes[name] = "a probe did not answer"
        else:
            found.controls[name] = Control("verified", promise.how.get(name, how))

    decide(
        "filesystem.write",
        "read-only root; only the workspace, /tmp and the home of the session are writable",
        "write",
        wrong="a file of the host was changed" if evidence.written else "",
    )
    decide(
        "filesystem.read",
        "allow-listed root",
        "read", "hidden", "devices", "kernel_memory",
        wrong="a file of the host was read" if evidence.read else "",
    )  # fmt: skip
    own_network = bool(promise.namespaces) and policy.network != "host"
    namespaces = (*promise.namespaces, *(("net",) if own_network else ()))
    shared = [name for name in namespaces if value.get(f"ns_{name}") == os.readlink(f"/proc/self/ns/{name}")]
    visible = value.get("processes", "")
    crowded = visible.isdigit() and int(visible) > promise.processes
    decide(
        "process.isolation",
        "own namespaces; processes of the host are invisible",
        wrong=", ".join([f"shared namespace {name}" for name in shared] + [f"{visible} processes"] * crowded),
        unanswered=not visible or any(not value.get(f"ns_{name}") for name in namespaces),
    )
    decide(
        "kill_tree",
        "PID namespace, killed with its call",
        wrong="a process outlived its call" if evidence.survived else "",
        unanswered=not evidence.left,
    )
    if policy.network == "host":
        found.controls["network"] = Control("not_enforced", "the host's network, as the policy says")
        decide("unix_sockets", "", "sockets")
        if "unix_sockets" not in found.holes and "unix_sockets" not in promise.gaps:
            found.controls["unix_sockets"] = Control(
                "partial", "sockets with a path are invisible; abstract ones of the host are reachable"
            )
    else:
        others = value.get("interfaces", "") if own_network else ""
        wrong_network = [f"interface {others}"] if others else []
        how = "own, empty network namespace, shared by the commands and jobs of the session"
        answer = value.get("egress", "")
        if policy.network == "allowlist":
            how = "own network namespace with nothing but the proxy, which refused a host that is not listed"
            if answer and " 403 " not in f"{answer} ":
                wrong_network.append(f"the proxy answered `{answer}` for a host that is not listed")
        decide(
            "network",
            how,
            "loopback",
            wrong=", ".join(wrong_network),
            unanswered="interfaces" not in value or (policy.network == "allowlist" and not answer),
        )
        decide("unix_sockets", "sockets of the host are invisible", "sockets", *_with_perl(answers, "abstract"))
    leak = value.get("environ", "")
    decide(
        "secrets.env",
        "clean environment in every visible process",
        wrong=f"the variable {leak}" if leak else "",
        unanswered="environ" not in value,
    )
    wrong = [f"{name}{value[name]}" for name, wanted in promise.status.items() if value.get(name, wanted) != wanted]
    decide(
        "privileges",
        "no capabilities, no_new_privs, seccomp filter",
        *_with_perl(answers, *_SURFACE),
        wrong=", ".join(wrong),
        unanswered=not promise.status.keys() <= value.keys(),
    )
    decide("kernel.sysctl", "read-only cover over /proc", "sysctl")
    decide("setuid", "seccomp filter", "setuid")
    if value.get("perl"):
        decide("vsock", "seccomp filter", "vsock")
    else:
        found.controls["vsock"] = Control("partial", "seccomp filter loaded; not attacked, as there is no perl here")
    wrong_paths = ", ".join(item for item in (value.get("protected", ""), answers.open.get("git", "")) if item)
    decide("workspace.exec_later", "", wrong=wrong_paths, unanswered="protected" not in value)
    if found.controls["workspace.exec_later"].state == "verified":
        found.controls["workspace.exec_later"] = Control(
            "partial", "existing protected paths cannot be changed; any other file may be run later, outside"
        )
    found.controls.update({**_limits(policy, answers), **promise.gaps, **promise.found})
    return found


def _with_perl(answers: Answers, *names: str) -> tuple[str, ...]:
    """Attacks that need a system call, and so perl. They are additional ones, but where it is, it must answer."""
    return names if answers.value.get("perl") else ()


def _limits(policy: Policy, answers: Answers) -> dict[str, Control]:
    limits, value = policy.limits, answers.value
    controls: dict[str, Control] = {}

    def lowered(letter: str, wanted: int) -> bool:
        got = value.get(f"limit_{letter}", "")
        return got.isdigit() and int(got) <= wanted

    per_process = f"{limits.memory >> 20} MiB of data per process (RLIMIT_DATA)"
    if not lowered("d", limits.memory >> 10):
        controls["limits.memory"] = Control("not_enforced", "RLIMIT_DATA could not be set")
    elif "memory" in answers.open:
        controls["limits.memory"] = Control("not_enforced", "RLIMIT_DATA is set, and a process went beyond it")
    else:
        tried = "" if "memory" in answers.held else ", not attacked"
        controls["limits.memory"] = Control("partial", f"{per_process}{tried}; no limit for all together")
    if "procs" in answers.open:
        controls["limits.procs"] = Control("not_enforced", "the kernel does not limit processes of uid 0")
    elif not lowered("u", limits.procs):
        controls["limits.procs"] = Control("not_enforced", "RLIMIT_NPROC could not be set")
    elif "procs" in answers.held:
        controls["limits.procs"] = Control("verified", f"RLIMIT_NPROC: {limits.procs} for one command")
    else:
        controls["limits.procs"] = Control("partial", f"RLIMIT_NPROC {limits.procs} is set; not attacked")
    if lowered("f", limits.file_size >> 10):
        controls["limits.disk"] = Control(
            "partial", f"{limits.file_size >> 20} MiB per file (RLIMIT_FSIZE); no limit for all together"
        )
    else:
        controls["limits.disk"] = Control("not_enforced", "RLIMIT_FSIZE could not be set")
    size = value.get("shm", "").partition(",")[0]
    if "shm_more" in answers.open:
        controls["limits.shm"] = Control("not_enforced", f"/dev/shm took {answers.open['shm_more']}")
    elif size:
        attacked = "shm_more" in answers.held
        how = f"/dev/shm holds {size}{'' if attacked else '; not attacked, as there is no fallocate here'}"
        controls["limits.shm"] = Control("verified" if attacked else "partial", how)
    else:
        controls["limits.shm"] = Control("unavailable", "the size of /dev/shm was not seen")
    return controls
