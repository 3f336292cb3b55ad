"""Why bubblewrap does not work on this machine, and what a person can do about it."""

from __future__ import annotations

import os

__all__ = ["diagnose"]

_REMEDIES = (
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "allow user namespaces with `sysctl -w user.max_user_namespaces=15000`",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "allow user namespaces with `sysctl -w kernel.unprivileged_userns_clone=1`",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "install the AppArmor profile for bwrap (package `apparmor-profiles`), or allow user namespaces with "
        "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
)
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")


def diagnose(message: str) -> tuple[str, str]:
    """Reason and remedy for :class:`SandboxUnavailable`.

    Args:
        message: What bubblewrap said, e.g. ``bwrap: Creating new namespace failed: ...``, or ``nsenter`` before it.
    """
    reason = f"bubblewrap failed with `{message.removeprefix('bwrap: ')}`"
    lowered = message.lower()
    if "unknown option" in lowered:
        return reason, "upgrade bubblewrap to 0.8 or later"
    if "execvp bash" in lowered:
        return reason, "install bash"
    for path, bad, remedy in _REMEDIES:
        if _read(path) == bad:
            return reason, remedy
    if any(os.path.exists(path) for path in _CONTAINER_FILES):
        return reason, (
            "start the container with `--security-opt systempaths=unconfined` and a seccomp profile that allows user "
            "namespaces (`docker/operator/seccomp.json`, or `unconfined`), or run Operator outside of it"
        )
    return reason, "run `bwrap --unshare-all --ro-bind / / true` by hand, and fix what it says"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
