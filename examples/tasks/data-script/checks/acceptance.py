"""Runs monthly.py on a file that its author had no part in, and on versions of it that nobody can know beforehand.

Exit code 0: it prints what it should; 1: it does not; 3: the expectation cannot be read.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "monthly.py", str(file)], cwd=HERE, capture_output=True, text=True, timeout=60
    )


def compare(file: Path, expected: dict[str, Any]) -> None:
    done = run(file)
    if done.returncode != 0:
        sys.exit(f"{file.name}: it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    if not done.stdout.strip().startswith("{"):
        sys.exit(f"{file.name}: it printed {done.stdout[:200]!r}, which is no JSON object")
    found = json.loads(done.stdout)
    if found != expected or list(found) != sorted(found):
        sys.exit(f"{file.name}: it printed {done.stdout.strip()}, and should print {json.dumps(expected)}")


def changed(rows: list[dict[str, str]], expected: dict[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    """The same orders some years later and so many times as large."""
    # Whole leap periods keep the 29th of February, until 2100.
    years, factor = 4 * random.randint(1, 18), random.randint(2, 9_999)
    file = folder / f"{years}-years-later-times-{factor}.csv"
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, rows[0].keys())
        writer.writeheader()
        for row in rows:
            amount = Decimal(row["amount"].replace(",", "")) * factor
            writer.writerow({**row, "date": later(row["date"], years), "amount": f"{amount:,.2f}"})
    return file, {
        later(month, years): {"orders": value["orders"], "total": f"{Decimal(value['total']) * factor:.2f}"}
        for month, value in expected.items()
    }


def later(date: str, years: int) -> str:
    return f"{int(date[:4]) + years}{date[4:]}"


def main() -> None:
    try:
        expected = json.loads((HERE / "expected.json").read_text("utf-8"))
        with (HERE / "held-out.csv").open(encoding="utf-8", newline="") as source:
            rows = list(csv.DictReader(source))
    except (OSError, ValueError) as error:
        print(f"the expectation cannot be read: {error}", file=sys.stderr)
        sys.exit(3)
    compare(HERE / "held-out.csv", expected)
    with tempfile.TemporaryDirectory() as room:
        for _ in range(3):
            compare(*changed(rows, expected, Path(room)))
        broken = Path(room, "broken.csv")
        broken.write_text(
            "id,date,customer,status,amount\n1,2024-01-01,A,paid,1.00\n2,2024-01-02,B,paid,much\n", "utf-8"
        )
        done = run(broken)
        if (done.returncode, done.stdout) != (2, "") or "3" not in done.stderr or "Traceback" in done.stderr:
            sys.exit(
                f"a line that cannot be understood: it ended with {done.returncode} and said {done.stderr[-300:]!r}"
            )
    print("monthly.py is right about all of them")


if __name__ == "__main__":
    main()
