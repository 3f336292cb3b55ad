"""What stands in for the model in the demo: plans for its two tasks, and one question to a person."""

from __future__ import annotations

import re

from operator_core.demo.case import Step
from operator_core.demo.task_brain import Attempt, Plan, task_brain
from operator_core.scripted.brain import Answer, Brain, Router
from operator_core.scripted.turn import Turn, text_of

__all__ = ["ANSWER", "QUARTER", "TOTALS", "demo_brain"]

TOTALS = (
    "Write totals.py. Its only argument is a CSV file with the columns customer and amount, such as 19.90. It prints a "
    "line for each customer, in alphabetical order: the name, a space, and the sum to the cent."
)
"""What is asked first."""

QUARTER = "Write sales-report.md with the title Sales and the quarter that we agreed on. If you do not know it, ask me."
"""What is asked then; nothing in it says which quarter."""

ANSWER = "It is Q3."
"""What the person answers."""

_LOOK = Step("ls -A", "See what is there.")
_TABLE = r"cd /tmp && printf 'customer,amount\nBo,2.00\nAda,0.10\nAda,0.20\n' > in.csv && cd - > /dev/null"
_SUMS = (
    f"{_TABLE} && python3 totals.py /tmp/in.csv > /tmp/out.txt; cat /tmp/out.txt; "
    r"printf 'Ada 0.30\nBo 2.00\n' | cmp -s - /tmp/out.txt || "
    "{ echo 'these are not the sums to the cent'; exit 1; }"
)
_MISSING = (
    "python3 totals.py missing.csv; code=$?; "
    '[ "$code" -eq 1 ] || { echo "exit code $code for a file that is not there"; exit 1; }'
)


def _program(*lines: str) -> str:
    return "cat > totals.py <<'END'\n" + "\n".join(lines) + "\nEND"


_FLOATS = _program(
    "import csv",
    "import sys",
    "",
    "totals = {}",
    "with open(sys.argv[1], newline='') as file:",
    "    for row in csv.DictReader(file):",
    "        totals[row['customer']] = totals.get(row['customer'], 0) + float(row['amount'])",
    "for name in sorted(totals):",
    "    print(name, totals[name])",
)
_CENTS = _program(
    '"""Sums of a CSV file with the columns customer and amount, a line for each customer."""',
    "",
    "import csv",
    "import sys",
    "from collections import defaultdict",
    "from decimal import Decimal",
    "",
    "",
    "def main(path):",
    "    totals = defaultdict(Decimal)",
    "    with open(path, newline='', encoding='utf-8') as file:",
    "        for row in csv.DictReader(file):",
    "            totals[row['customer']] += Decimal(row['amount'])",
    "    for name in sorted(totals):",
    "        print(f'{name} {totals[name]:.2f}')",
    "",
    "",
    "if __name__ == '__main__':",
    "    try:",
    "        main(sys.argv[1])",
    "    except (IndexError, OSError, ArithmeticError, KeyError) as error:",
    "        sys.exit(f'totals.py FILE.csv: {error}')",
)

_totals = Plan(
    "totals.py",
    criteria="Sums are right to the cent.\nA file that is not there gives a clear error.",
    attempts=(
        Attempt(
            {
                "look": _LOOK,
                "write": Step(_FLOATS, "I add the amounts up."),
                "try": Step(f"{_TABLE} && python3 totals.py /tmp/in.csv", "I try it on a small table."),
            },
            "totals.py adds up the amounts of each customer.",
        ),
        Attempt(
            {
                "write": Step(_CENTS, "Floating-point numbers do not add up to the cent; I use decimal ones."),
                "try": Step(_SUMS, "I try it with amounts that floats get wrong."),
            },
            "totals.py now calculates with decimal numbers, prints two places, and says what is wrong with a file.",
            after="not the sums",
        ),
    ),
    tests={
        "sums": Step(_SUMS, "0.10 and 0.20 of Ada, 2.00 of Bo:"),
        "missing": Step(_MISSING, "A file that is not there:"),
    },
    summary=(
        "totals.py prints the sum of each customer, to the cent.",
        "The first attempt used floating-point numbers and was refused; this one calculates with decimal ones.",
    ),
)

_WORD = "sales-report.md"
_TITLE = """python3 -c "text = open('sales-report.md').read(); print(text); assert text == '# Sales Q3\\n'\""""
_CRITERIA = "sales-report.md has the title Sales and the quarter."
_asking = Plan(
    _WORD,
    criteria=_CRITERIA,
    attempts=(
        Attempt({"look": _LOOK}, "Nothing here says which quarter that is.", asks="Which quarter did we agree on?"),
    ),
)
_knowing = Plan(
    _WORD,
    criteria=_CRITERIA,
    attempts=(
        Attempt(
            {
                "look": _LOOK,
                "write": Step("printf '# Sales Q3\\n' > sales-report.md && cat sales-report.md", "Now I know it."),
            },
            "sales-report.md has the title that was asked for.",
        ),
    ),
    tests={"title": Step(_TITLE, "The title with the quarter that was answered:")},
    summary=("sales-report.md has the title Sales Q3, with the quarter that you named.",),
)


class _DemoBrain:
    """Plays by the plans; the worker of the second task asks until a person has named a quarter."""

    def __init__(self) -> None:
        self._asking = task_brain(_totals, _asking)
        self._knowing = task_brain(_totals, _knowing)

    async def reply(self, turn: Turn) -> Answer:
        """By what the turn says."""
        working = "shell" in turn.tools and "submit_verdict" not in turn.tools
        brain = self._asking if working and not _answered(turn) else self._knowing
        return await brain.reply(turn)


def _answered(turn: Turn) -> bool:
    said = [text_of(message["content"]) for message in turn.messages if message["role"] == "user"]
    return any(re.search(r"\bQ[1-4]\b", text) for text in said[1:])


def demo_brain() -> Brain:
    """The brain of the demo."""
    # With a route it also answers what would else be taken for requests of one-line summaries.
    return Router({lambda turn: True: _DemoBrain()})
