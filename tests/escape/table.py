"""The expected results, and the part of ``docs/sandboxing.md`` that shows them.

``python -m tests.escape.table`` writes the page anew from ``expected.csv``. With names of columns (``bubblewrap/root``)
it attacks first, and puts what it saw into the table: look at the difference before it is kept.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

from tests.escape.attack import AREAS, Outcome, claimed
from tests.escape.corpus import ATTACKS, BENIGN, PROXY_ATTACKS
from tests.escape.fight import COLUMNS, Missing, fight
from tests.escape.known import KNOWN, Known

__all__ = ["EXPECTED", "PAGE", "expected", "page", "sections"]

EXPECTED = Path(__file__).with_name("expected.csv")
PAGE = Path(__file__).parents[2] / "docs" / "sandboxing.md"
_SIGNS: dict[str, str] = {"escaped": "**through**", "held": "held", "not run": "–"}
_TITLES = {
    "write": "Changing what is not the agent's",
    "read": "Learning what is not for the agent",
    "processes": "Other processes, and living on after the call",
    "kernel": "The kernel",
    "network": "The network",
    "resources": "Taking more than the policy allows",
    "blocklist": "Words that a list of forbidden words does not know",
}


def expected() -> dict[str, dict[str, Outcome]]:
    """By column, then by attack."""
    found: dict[str, dict[str, Outcome]] = {column: {} for column in COLUMNS}
    with EXPECTED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for column in COLUMNS:
                found[column][row["attack"]] = row[column]  # type: ignore[assignment]
    return found


def sections() -> dict[str, str]:
    """The generated parts of the page, by their mark."""
    rows = expected()
    return {
        "TOTAL": _total(),
        "SUMMARY": _summary(rows),
        "KNOWN": _known(),
        "ATTACKS": _attacks(rows),
        "BENIGN": _benign(),
        "IDLE": _idle(),
        "PROXY": "".join(f"* {attack.name}\n" for attack in PROXY_ATTACKS.values()),
    }


def page(text: str) -> str:
    """The page with its generated parts made anew."""
    for mark, part in sections().items():
        before, found, rest = text.partition(f"<!-- {mark} -->\n")
        assert found, f"the page has no mark {mark}"
        text = f"{before}{found}{part}<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]


def _columns() -> list[str]:
    return [column.replace("/", ", ") for column in COLUMNS]


def _total() -> str:
    return f"{len(ATTACKS)} attacks in {len(AREAS)} areas, and {len(BENIGN)} pieces of honest work.\n"


def _summary(rows: dict[str, dict[str, Outcome]]) -> str:
    lines = _head("area", "attacks", *_columns())
    for area in AREAS:
        names = [name for name in ATTACKS if name.startswith(f"{area}: ")]
        through = [str(sum(rows[column][name] == "escaped" for name in names)) for column in COLUMNS]
        lines.append(f"| {_TITLES[area]} | {len(names)} | {' | '.join(through)} |")
    totals = [str(Counter(rows[column].values())["escaped"]) for column in COLUMNS]
    lines.append(f"| **all** | **{len(ATTACKS)}** | {' | '.join(f'**{total}**' for total in totals)} |")
    return "\n".join(lines) + "\n"


def _known() -> str:
    """Grouped by the reason, because one reason opens many attacks."""
    groups: dict[Known, list[str]] = {}
    for name, known in KNOWN.items():
        groups.setdefault(known, []).append(name)
    lines = _head("attacks", "may get through", "why it is open, and what to do")
    for known, names in groups.items():
        where = "; ".join(column.replace("/", ", ") for column in known.columns)
        also = " (depends on the machine)" if known.varies else ""
        lines.append(f"| {'; '.join(names)} | {where}{also} | {known.why} |")
    return "\n".join(lines) + "\n"


def _attacks(rows: dict[str, dict[str, Outcome]]) -> str:
    lines: list[str] = []
    for area in AREAS:
        lines += [f"### {_TITLES[area]}", "", *_head("attack", *_columns())]
        for name, attack in ATTACKS.items():
            if name.startswith(f"{area}: "):
                mark = " ¹" if attack.witness is claimed else ""
                mark += " ²" if attack.idle else ""
                signs = " | ".join(_SIGNS[rows[column][name]] for column in COLUMNS)
                lines.append(f"| {attack.name}{mark} | {signs} |")
        lines.append("")
    return "\n".join(lines)


def _benign() -> str:
    notes = {n: f" (not in {item.not_in[0]}: {item.not_in[1]})" for n, item in BENIGN.items() if item.not_in}
    return "".join(f"* {name}{notes.get(name, '')}\n" for name in BENIGN)


def _idle() -> str:
    reasons: dict[str, list[str]] = {}
    for name, attack in ATTACKS.items():
        if attack.idle or attack.unsafe:
            reasons.setdefault(attack.idle or attack.unsafe, []).append(name)
    return "".join(f"* {'; '.join(names)}: {reason}\n" for reason, names in reasons.items())


def _measure(columns: list[str]) -> None:
    rows = expected() if EXPECTED.exists() else {column: {} for column in COLUMNS}
    for column in columns:
        try:
            seen = fight(column)
        except Missing as missing:
            print(f"{column}: {missing}", file=sys.stderr)
            continue
        rows[column] = {name: outcome for name, (outcome, *_) in seen["attacks"].items()}
        print(column, dict(Counter(rows[column].values())), dict(Counter(item[0] for item in seen["benign"].values())))
    with EXPECTED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["attack", *COLUMNS])
        writer.writerows([name, *(rows[column].get(name, "held") for column in COLUMNS)] for name in ATTACKS)


if __name__ == "__main__":
    if sys.argv[1:]:
        _measure(sys.argv[1:])
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
