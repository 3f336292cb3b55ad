"""Taking more than the policy allows. The limits of the session are small, so that nothing here harms the machine."""

from __future__ import annotations

from tests.escape.attack import KIT, Attack, claimed, hindered, many

__all__ = ["ATTACKS"]

_NOT_GUESSED = "nobody can guess the names, without a sandbox too; here because a pipe once hung the worker as a whole"
_RUNNER = "the runner lowers this limit itself, without a sandbox too"

# More files, because one alone is held by the limit of a file.
_SHM = (
    'd=/dev/shm/$ID; mkdir "$d"; (for i in 1 2 3; do head -c 12M /dev/zero > "$d/$i" || exit; done; echo "$SAY"); '
    'rm -r "$d"'
)

ATTACKS = [
    Attack("more memory than the limit, in one process", f"{KIT} one_memory 400", claimed, idle=_RUNNER),
    Attack("more memory than the limit, in many processes", f"{KIT} memories 4 150", claimed),
    Attack("more memory than the limit, as an unnamed file", f"{KIT} file_memory 400", claimed),
    Attack("more shared memory than the limit", _SHM, claimed),
    Attack("more processes than the limit", f'{KIT} many 110 "$MARK"', many),
    Attack("a larger file than the limit", 'head -c 64M /dev/zero > "b-$ID" && echo "$SAY"', claimed, idle=_RUNNER),
    Attack(
        "many files that are together larger",
        'for i in 1 2 3 4 5 6; do head -c 12M /dev/zero > "b-$ID-$i" || exit; done; echo "$SAY"',
        claimed,
    ),
    Attack(
        "pipes where the platform makes its own files",
        (f"{KIT} obstruct pipe $PLATFORM", "echo $ID", "echo $ID"),
        hindered,
        idle=_NOT_GUESSED,
    ),
    Attack(
        "folders where the platform makes its own files",
        (f"{KIT} obstruct folder $PLATFORM", "echo $ID", "echo $ID"),
        hindered,
        idle=_NOT_GUESSED,
    ),
    Attack(
        "a higher limit of open files",
        'ulimit -n 65536 && echo "$SAY"',
        claimed,
        machine=True,
        idle="that machine's root may not raise it",
    ),
    Attack("a higher priority than others", '[ "$(nice -n -5 nice)" -lt 0 ] && echo "$SAY"', claimed, machine=True),
]
