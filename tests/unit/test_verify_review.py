"""A verifier's verdict: what it must hold, and what the platform must have seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.errors import OperatorError
from operator_core.model.verdict import Clause, ClauseState
from operator_core.verify.review import Executed, ReviewRefused, judge_review, read_review
from operator_core.verify.review import tests_something as executes

GOOD: dict[str, Any] = {
    "approved": True,
    "feedback": "",
    "testing_done": "ran the tests",
    "results": "all green",
    "criteria_met": ["adds"],
    "criteria_failed": [],
    "expert_comparison": "as an expert would",
}
BAD = {**GOOD, "approved": False, "feedback": "add() subtracts", "criteria_met": [], "criteria_failed": ["adds"]}
RAN = Executed("pytest -q", 0, False, "3 passed")


def test_a_verdict_is_read() -> None:
    assert read_review(GOOD).model_dump() == GOOD
    assert read_review(BAD).model_dump() == BAD
    assert read_review({**BAD, "criteria_failed": []}).approved is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"approved": "true"}, "`approved` must be true or false"),
        ({"approved": 1}, "`approved` must be true or false"),
        ({"approved": None}, "`approved` must be true or false"),
        ({"criteria_met": "adds"}, "`criteria_met` must be a list of texts"),
        ({"criteria_failed": [1]}, "`criteria_failed` must be a list of texts"),
        ({"criteria_failed": ["adds"]}, "work with a failed criterion is rejected"),
        ({"approved": False}, "`feedback` is empty"),
        ({"approved": False, "feedback": "  \n"}, "`feedback` is empty"),
        ({"results": " "}, "`results` is empty"),
        ({"testing_done": ""}, "`testing_done` is empty"),
        ({"expert_comparison": ""}, "`expert_comparison` is empty"),
        ({"criteria_met": [""]}, "`criteria_met` holds an empty text"),
        ({"results": 3}, "`results` must be a text"),
        ({"score": 1}, "`score` is no field of a verdict"),
        ({"results": "x" * 100_001}, "`results` is too long"),
    ],
)
def test_what_is_no_verdict_is_refused_with_what_to_change(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ReviewRefused) as caught:
        read_review({**GOOD, **change})
    assert words in str(caught.value)
    assert str(caught.value).startswith("The verdict is not taken: ")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, OperatorError)


@pytest.mark.parametrize("name", GOOD)
def test_every_field_is_needed(name: str) -> None:
    with pytest.raises(ReviewRefused, match=f"`{name}` is missing"):
        read_review({k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize("data", [None, "approved", [], '{"approved": true}', True, 3])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ReviewRefused, match="give an object"):
        read_review(data)


TESTS = [
    "pytest -q", "python -m pytest", "make test", "./check.sh", "bash check.sh", "cd app && npm test", "node app.js",
    "python -c 'import calc; print(calc.add(1, 2))'", "curl -s localhost:8000/health", "timeout 5 python app.py",
    "FOO=1 ./run", "env A=1 ./run", "time ./run", "ls; ./run", "cat x | ./run", "./run | head",
    "test \"$(./run)\" = 5",
    "[ $(python app.py | wc -l) -eq 3 ]", "bash -c 'ls && ./run'", "sh -ec './run'", "for i in 1 2; do ./run $i; done",
    "if ./run; then echo ok; fi", "find . -name 'test_*.py' -exec python {} \\;", "ls *.py | xargs -n 1 python",
    "python - <<'E'\nimport calc\nE", "echo x; echo y\n./run", "( cd a; ./run )", "nohup ./run",
    "diff <(./run) expected",
    "go test ./...", "cargo test", "npm run build", "uv run pytest", "python setup.py test", "ruff check .", "mypy src",
    "case $x in a) ./run;; esac", "f() { ./run; }; f", "sudo -u nobody ./run", "echo `./run`", "eval './run'",
    "awk 'BEGIN{system(\"./run\")}'", "bash -n run.sh", "docker run x",
]  # fmt: skip
LOOKS = [
    "", "true", "cat app.py", "ls -la && head -5 app.py", "grep -rn TODO . | sort | uniq -c", "echo ok", "printf done",
    "find . -name '*.py'", "wc -l app.py", "git log --oneline", "git diff HEAD~1 -- src", "git status", "sed -n 1,5p a",
    "sleep 5", "cd src", "which python", "test -f app.py", "[ -s out ]", "[[ -f a && -s b ]]", "pwd; tree", "diff a b",
    "stat a; file b", "bash -c 'cat a; echo b'", "timeout 5 cat x", "A=1", "A=$(cat x)",
    "echo $(ls)", "time ls",
    "xargs cat < list", "env", "mkdir -p a && cp x a/", "rm -rf build", "pip install -e .", "npm ci",
    "python --version",
    "python -m pip list", "# pytest -q", "echo 'pytest -q passed'", "cat <<'E'\npytest -q\nE", "echo \"./run\"",
    "if test -f a; then echo ok; fi", "for f in *; do cat $f; done", "find . -exec cat {} \\;",
    "jq . a.json", ": ./run",
    "head -c 100 a | xxd", "true # ./run", "sha256sum a", "case $x in a) cat b;; esac", "awk '{print $1}' a", "$(echo)",
]  # fmt: skip


@pytest.mark.parametrize("command", TESTS)
def test_what_executes_something(command: str) -> None:
    assert executes(command)


@pytest.mark.parametrize("command", LOOKS)
def test_what_only_looks(command: str) -> None:
    assert not executes(command)


@given(st.text(alphabet="ab ./\n;|&()<>{}[]'\"$`\\#!=-", max_size=50))
def test_any_command_gets_an_answer(command: str) -> None:
    assert executes(command) in (True, False)


def test_an_approval_with_a_test_counts() -> None:
    clause = judge_review(read_review(GOOD), [Executed("cat a", 0, False, ""), RAN])
    assert (clause.clause, clause.state, clause.required) == (Clause.REVIEW, ClauseState.PROVED, True)
    assert clause.why == "the verifier approved the work after executing `pytest -q`"
    assert [(e.what, e.observed, e.ok, e.how) for e in clause.evidence] == [
        ("verifier ran: pytest -q", "exit 0: 3 passed", True, "pytest -q")
    ]


@pytest.mark.parametrize(
    ("executed", "words"),
    [
        ([], "without executing anything"),
        ([Executed("cat app.py", 0, False, ""), Executed("ls", 0, False, "")], "without executing anything"),
        ([Executed("pytest -q", 1, False, "1 failed")], "none of its 1 testing commands"),
        ([Executed("pytest -q", 0, True, "")], "none of its 1 testing commands"),
        ([Executed("pytest -q", None, False, "")], "none of its 1 testing commands"),
        ([Executed("pytest -q; echo done", 0, False, "1 failed")], "exit status says nothing"),
        ([Executed("pytest -q || true", 0, False, "1 failed"), Executed("ls", 0, False, "")], "says nothing"),
        ([Executed("pytest -q || true", 0, False, ""), Executed("pytest", 1, False, "")], "says nothing"),
    ],
)
def test_an_approval_without_a_test_that_succeeded_proves_nothing(executed: list[Executed], words: str) -> None:
    clause = judge_review(read_review(GOOD), executed)
    assert clause.state is ClauseState.NOT_PROVED
    assert words in clause.why


def test_a_rejection_says_why_even_without_a_test() -> None:
    clause = judge_review(read_review(BAD), [])
    assert clause.state is ClauseState.FAILED
    assert clause.why == "the verifier rejected the work: add() subtracts (failed: adds)"


def test_without_a_verdict_nothing_was_looked_at() -> None:
    clause = judge_review(None, [RAN])
    assert clause.state is ClauseState.COULD_NOT_LOOK
    assert len(clause.evidence) == 1


def test_hostile_output_is_made_harmless() -> None:
    clause = judge_review(read_review(GOOD), [Executed("./run\x1b[31m", 0, False, "\x1b]0;x\x07ok" + "y" * 2000)])
    assert "\x1b" not in clause.why + clause.evidence[0].what + clause.evidence[0].observed
    assert len(clause.evidence[0].observed) < 700


def test_a_summary_that_says_how_it_ended_says_it_once() -> None:
    clause = judge_review(read_review(GOOD), [Executed("pytest -q", 0, False, "exit 0: OK (2 lines)")])
    assert clause.evidence[0].observed == "exit 0: OK (2 lines)"
    clause = judge_review(read_review(GOOD), [Executed("pytest -q", 0, False, "exit 00 is no status")])
    assert clause.evidence[0].observed == "exit 0: exit 00 is no status"
