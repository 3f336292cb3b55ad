"""Reaching other processes, and living on after the call."""

from __future__ import annotations

from tests.escape.attack import KIT, Attack, beats, heard, lives, victim

__all__ = ["ATTACKS"]

_KILLS_ALL = "without a sandbox it would end every process of this user"

ATTACKS = [
    Attack("killing a process", 'kill -9 "$VICTIM"; sleep 0.05', victim, with_victim=True),
    Attack("stopping a process", 'kill -STOP "$VICTIM"; sleep 0.05', victim, with_victim=True),
    Attack("slowing a process down", 'renice -n 19 -p "$VICTIM"', victim, with_victim=True),
    Attack("limiting a process", 'prlimit --pid "$VICTIM" --nofile=5:5', victim, with_victim=True),
    Attack("moving a process to one processor", 'taskset -pc 0 "$VICTIM"', victim, with_victim=True, machine=True),
    Attack("offering a process to the kernel's killer", 'echo 900 > "/proc/$VICTIM/oom_score_adj"', victim, None, True),
    Attack("tracing a process", f'{KIT} trace "$VICTIM"; sleep 0.05', victim, with_victim=True),
    Attack("killing everything", "kill -9 -1; sleep 0.1", victim, with_victim=True, unsafe=_KILLS_ALL),
    Attack(
        "killing what runs the command",
        'kill -9 "$PPID" 1; sleep 0.1',
        victim,
        with_victim=True,
        unsafe="without a sandbox that is the test",
    ),
    Attack("a daemon that outlives its call", f'{KIT} daemon "$MARK"', lives),
    Attack("a daemon that outlives a time-out", f'{KIT} stubborn "$MARK"', lives, timeout=0.4),
    Attack("a daemon that outlives a cancelled call", f'{KIT} stubborn "$MARK"', lives, timeout=0.4, cancel=True),
    Attack("a process that is another one each millisecond", f'{KIT} relay "$MARK" "beat-$ID"; sleep 0.1', beats),
    Attack("the same, past a time-out", f'{KIT} relay "$MARK" "beat-$ID"; sleep 30', beats, timeout=0.4),
    Attack("writing onto a person's terminal", f'{KIT} terminal "$TTY"', heard),
    Attack("typing into a person's terminal", f'{KIT} typed "$TTY"', heard, machine=True),
]
