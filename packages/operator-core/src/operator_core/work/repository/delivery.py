"""The result of a task as a commit in the task's own repository (row B-011), never in anybody's checkout.

The agent could write to ``.git``: its configuration, hooks and attributes may name programs, and an object in it may
hold something else than its name says. So nothing of it is obeyed or believed: a new repository is made beside it, what
history there is is fetched into that (which computes every hash again), the files of the workspace are committed there,
and it takes the place of the old one. All of this runs in a fresh sandbox, in which nothing of the agent runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from operator_core.sandbox.protocol import ExecResult
from operator_core.text import clip, first_line, printable

__all__ = ["Committed", "Run", "commit_result"]

Run = Callable[[str, float], Awaitable[ExecResult]]
"""Runs a command in the root of the workspace, in a fresh sandbox (command, time limit in seconds)."""

_LIMIT_S = 600.0

_SCRIPT = r"""
set -u
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_NO_LAZY_FETCH=1 LC_ALL=C.UTF-8
export GIT_ALLOW_PROTOCOL=file GIT_NO_REPLACE_OBJECTS=1
export GIT_AUTHOR_NAME=Operator GIT_AUTHOR_EMAIL=operator@localhost
export GIT_COMMITTER_NAME=Operator GIT_COMMITTER_EMAIL=operator@localhost
branch=refs/heads/__BRANCH__
old=$PWD/.git new=$PWD/.git/operator-new history=kept unread=no

git() {
  command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgsign=false -c log.showSignature=false \
    -c gc.auto=0 -c maintenance.auto=false -c protocol.ext.allow=never -c advice.addEmbeddedRepo=false "$@"
}

type -P git >/dev/null || { echo "git is not installed" >&2; exit 1; }
if [ -L .git ] || [ ! -d .git ]; then
  rm -rf .git && mkdir .git || exit 1
fi
chmod -R u+rwX .git 2>/dev/null
rm -rf "$new"
format=$(git --git-dir="$old" rev-parse --show-object-format 2>/dev/null) || format=sha1
git init -q --bare --template= --object-format="$format" "$new" || exit 1
fetch() {
  git --git-dir="$new" fetch -q --no-tags --update-shallow --no-write-fetch-head "$old" "$@" 2>/dev/null
}
fetch '+HEAD:refs/operator/head' '+refs/heads/*:refs/heads/*' '+refs/tags/*:refs/tags/*' ||
  fetch '+HEAD:refs/operator/head' || fetch "+$branch:refs/operator/head" || history=lost
parent=$(git --git-dir="$new" rev-parse -q --verify 'refs/operator/head^{commit}') || parent=
git --git-dir="$new" update-ref -d refs/operator/head 2>/dev/null

export GIT_INDEX_FILE=$new/index
git --git-dir="$new" --work-tree="$PWD" -c core.bare=false add -A --ignore-errors . >/dev/null 2>&1 || unread=yes
tree=$(git --git-dir="$new" write-tree) || exit 1
nested=$(git --git-dir="$new" ls-files -s | grep -c '^160000 ')
if [ -n "$parent" ]; then
  before=$(git --git-dir="$new" rev-parse "$parent^{tree}") || exit 1
else
  before=$(git --git-dir="$new" hash-object -t tree /dev/null)
fi
files=$(git --git-dir="$new" diff-tree -r -z --no-renames --name-only "$before" "$tree" | tr -dc '\0' | wc -c)
if [ -n "$parent" ] && [ "$before" = "$tree" ]; then
  commit=$parent
else
  commit=$(printf '%s\n' __MESSAGE__ | git --git-dir="$new" commit-tree "$tree" ${parent:+-p "$parent"}) || exit 1
fi
unset GIT_INDEX_FILE

# A branch `operator`, or one below ours, would be in the way of it.
git --git-dir="$new" update-ref -d refs/heads/operator 2>/dev/null
git --git-dir="$new" for-each-ref --format='delete %(refname)' "$branch/" | git --git-dir="$new" update-ref --stdin
git --git-dir="$new" update-ref "$branch" "$commit" || exit 1
git --git-dir="$new" symbolic-ref HEAD "$branch" || exit 1
git --git-dir="$new" config core.bare false || exit 1

# What the sandbox protects (config, hooks) cannot be removed, and is as it was before the agent came.
shopt -s nullglob dotglob
for path in "$old"/*; do
  [ "$path" = "$new" ] || rm -rf -- "$path" 2>/dev/null
done
for path in "$new"/*; do
  name=${path##*/}
  if [ "$name" != config ] || [ ! -e "$old/config" ]; then
    mv -T -- "$path" "$old/$name" || exit 1
  fi
done
rm -rf "$new"
mkdir -p "$old/hooks"

echo "commit=$commit files=$((files)) nested=$nested history=$history unread=$unread"
git --git-dir="$old" log --oneline --no-decorate -50 "$branch" --
"""


class Committed(NamedTuple):
    """The result in the task's own repository.

    Attributes:
        commit: The newest commit of the branch; None if it could not be committed.
        files: Number of files that it changes; 0 if there was nothing left to commit.
        history: ``git log --oneline`` of the last 50 commits; hostile text.
        note: What a person should know about it; empty if there is nothing.
    """

    commit: str | None
    files: int
    history: str
    note: str = ""


async def commit_result(run: Run, *, branch: str, message: str) -> Committed:
    """Commit everything in the workspace that its ``.gitignore`` does not leave out; doing it again changes nothing.

    The agent's own commits are kept below the result, unless its repository is damaged; the note says so then.

    Args:
        run: See :data:`Run`; its sandbox shows the workspace as writable and needs no network.
        branch: Where to commit, without ``refs/heads/``.
        message: Of the commit.
    """
    script = _SCRIPT.replace("__BRANCH__", shlex.quote(branch))
    script = script.replace("__MESSAGE__", shlex.quote(message.replace("\0", "")))
    done = await run(script, _LIMIT_S)
    head, _, history = done.stdout.text().partition("\n")
    facts = dict(word.partition("=")[::2] for word in head.split())
    if done.exit_code != 0 or not facts.get("commit"):
        why = f"it took longer than {_LIMIT_S:g} s" if done.timed_out else first_line(printable(done.stderr.text()))
        return Committed(
            None, 0, "", f"The result could not be committed ({why or 'no reason given'}); it is in the workspace."
        )
    notes = []
    if facts["history"] == "lost":
        notes.append("The repository was gone or damaged, so a new one was made and the history before it is lost.")
    if facts["nested"] != "0":
        notes.append(f"{facts['nested']} repositories inside of the workspace are in the commit by name only.")
    if facts["unread"] == "yes":
        notes.append("Some files could not be read and are not in the commit.")
    history = "\n".join(clip(line, 200) for line in printable(history).splitlines())
    return Committed(facts["commit"], int(facts["files"]), history, " ".join(notes))
