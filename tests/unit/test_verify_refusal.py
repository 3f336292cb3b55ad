"""Checks that cannot fail are refused, and nothing else is: what is refused is tried with the real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from operator_core.verify.refusal import PRELUDE, why_it_cannot_fail

# "x" stands for a program that does not exist, and so fails.
CANNOT_FAIL = [
    "", "   ", "# only words", "\n\n", "true", ":", "exit 0", "exit", "exit 256", "echo done", "echo $(x)", 'echo "$X"',
    "printf 'ok\\n'", "printf '%s' a", "cd", "cd .", "A=1", "A=1 B='2 3'", "A=1 true", "x || true", "x || :",
    "x || exit 0", "x || echo failed", "x; true", "x; exit 0", "x; echo done", "x\necho done", "x &", "x & y &",
    "x & wait", "x && y || true", "x || y || true", "(x || true)", "{ x || true; }", "x || { echo no; exit 0; }",
    "if x; then :; fi", "if x; then echo a; else echo b; fi", "if x; then :; elif x; then :; else true; fi",
    "for i in 1 2; do x || true; done", "for i in 1 2; do echo $i; done", "x; exit 0; x", "exit 0; x", "! false",
    "bash -c 'x || true'", "command true", "time true", "x 2>/dev/null || true", "x >/dev/null 2>&1; true",
    "true | true", "x || true # comment", "x ; # comment\n:", "x || \\\n true", "false || true && true",
    "x; (exit 0)", "sleep 0", "set -o pipefail; x | cat || true", "python - <<'E'\nraise SystemExit(1)\nE\necho done",
    "[[ a == b ]] || true", "true && true && echo ok", "x || true; A=5",
]  # fmt: skip

MAY_FAIL = [
    "pytest -q", "make test", "./check.sh", "test -f x", "grep -q a b && ! grep -q c d", "x | cat", "x | tee log",
    "python - <<'E'\nimport sys\nsys.exit(1)\nE", "python -m pytest -q || exit 1", "x || false", "x && true",
    "x && echo ok", "x || { echo no; exit 1; }", "set -e; x; echo done", "set -euo pipefail\nx\necho done", "exit 1",
    "trap 'exit 1' ERR; x; true", "! x", "! true", "[ -f x ]", "[[ -f x && -s x ]]", "test $(x | wc -l) -eq 3",
    "A=$(x)", "A=$(x); test -n \"$A\"", "cd sub", "cd sub && pytest", "echo ok > /no/where/x", "printf %d x", "printf",
    "echo ${X:?missing}", "x; exit $?", "x; exit", "x; test $? -eq 1", "true() { false; }; true", "exec x",
    "if x; then true; else false; fi", "if x; then exit 1; fi", "for f in a b; do x $f; done",
    "case $A in b) exit 1;; esac; true", "until x; do sleep 1; done", "(x; exit 3)", "diff <(x) b", "eval x; true",
    "$CMD; true", "((1 == 2)) || true", "bash -c 'x'", "bash -ec 'x; echo done'", "bash script", "env A=1 x",
    "timeout 5 x", "x &\nwait $!", "echo 'unfinished", "if x; then", "x; }", "source env; true", "npm test --silent",
    "cargo test --quiet", "go test ./...", "node -e 'process.exit(1)'", "test \"$(./run a | head -1)\" = 5", "x | true",
    "kill -9 $$; true", "UID=3", "echo a | x", "xargs -a list true", "find . -name '*.py' | xargs ruff check",
    "true | false", "A=1 x", "true; ./check.sh", "echo starting; pytest -q", "cat <<E\n$(x)\nE",
    "shopt -s failglob; echo *z",
    "x || true && ./y",
]  # fmt: skip


def run(command: str, folder: Path) -> int:
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", PRELUDE + command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    return done.returncode


@pytest.mark.parametrize("command", CANNOT_FAIL)
def test_a_check_that_cannot_fail_is_refused(command: str, tmp_path: Path) -> None:
    why = why_it_cannot_fail(command)
    assert why is not None
    assert why.startswith("The check ")
    assert "cannot fail" in why
    assert why.endswith(".")
    assert "\n" not in why
    assert run(command, tmp_path) == 0


@pytest.mark.parametrize("command", MAY_FAIL)
def test_a_check_that_may_fail_is_not_refused(command: str) -> None:
    assert why_it_cannot_fail(command) is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pytest || true", "what follows `||` always succeeds"),
        ("pytest; echo done", "hides the result of those before"),
        ("pytest &", "does not wait"),
        ("true", "it always succeeds"),
        ("# nothing", "runs no command"),
    ],
)
def test_the_reason_says_what_to_do(command: str, words: str) -> None:
    assert words in (why_it_cannot_fail(command) or "")


ATOMS = st.sampled_from(
    [
        "false", "no-such-program", "true", ":", "echo a", "echo $(false)", "printf 'a\\n'", "printf %d a", "exit",
        "exit 0", "exit 3", "A=1", "A=$(false)", "cd", "cd nowhere", "! false", "! true", "test 1 = 2",
        "[ -f nothing ]",
        "[[ a == b ]]", "A=1 true", "A=1 false", "false >/dev/null 2>&1", "echo a >/no/where", "echo ${NOPE:?}", "wait",
        "bash -c 'false || true'", "bash -c 'exit 4'", "bash -c 'false; exit'", "command false", "command true",
        "time false", "false # comment", "set -x", "set -e", "set +e", "set -u", "echo $NOPE", "trap 'exit 5' EXIT",
        "eval false", "exec true", "sleep 0", "cat <<E\n$(false)\nE\n", "false <<'E'\nexit 0\nE\n",
    ]
)  # fmt: skip


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    joined = st.tuples(pair, st.sampled_from(["\n", " && ", " || ", " | ", " & "])).map(lambda p: p[1].join(p[0]))
    return st.one_of(
        joined,
        st.tuples(pair, st.just("; ")).map(lambda p: p[1].join(p[0])),
        inner.map(lambda c: f"( {c}\n)"),
        inner.map(lambda c: f"{{ {c}\n}}"),
        inner.map(lambda c: f"! {c}"),
        inner.map(lambda c: f"for i in 1 2; do {c}\ndone"),
        inner.map(lambda c: f"for i in; do {c}\ndone"),
        inner.map(lambda c: f"{c} &"),
        st.tuples(inner, inner, inner).map(lambda p: f"if {p[0]}\nthen {p[1]}\nelse {p[2]}\nfi"),
        pair.map(lambda p: f"if {p[0]}\nthen {p[1]}\nfi"),
    )


@settings(
    max_examples=int(__import__("os").environ.get("N", "300")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(command="for i in; do exit\ndone")
@example(command="false\nfor i in 1; do exit\ndone")
@example(command="! exit")
@given(command=st.recursive(ATOMS, _combine, max_leaves=7))
def test_whatever_is_refused_really_ends_with_success(command: str, tmp_path: Path) -> None:
    if why_it_cannot_fail(command) is not None:
        assert run(command, tmp_path) == 0, command


@given(command=st.text(alphabet="ab \n;|&()<>{}[]'\"$`\\#!=1xif", max_size=60))
def test_any_text_is_read_or_left_alone(command: str) -> None:
    why = why_it_cannot_fail(command)
    assert why is None or "cannot fail" in why


def test_a_very_deep_command_is_left_alone() -> None:
    assert why_it_cannot_fail("(" * 5000 + "true" + ")" * 5000) is None
    assert why_it_cannot_fail("$(" * 5000) is None
    assert why_it_cannot_fail('"$(' * 5000) is None
