"""The tables of ``docs/untrusted-text.md``; ``python -m tests.redteam.injection_table`` writes them."""

from __future__ import annotations

from pathlib import Path

from tests.redteam.injections import CHANNELS, CONTROLS, LIMITS, Channel

__all__ = ["PAGE", "PARTS", "rows", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "untrusted-text.md"
PARTS: dict[str, tuple[Channel, ...]] = {"CHANNELS": CHANNELS, "CONTROLS": CONTROLS, "LIMITS": LIMITS}


def rows(part: str) -> list[tuple[str, ...]]:
    """What the page has to say: the way of the text, its mark, what happened, how the ticket ended."""
    return [(c.name, f"`{c.origin}`" if c.origin else "", c.happened, c.ends) for c in PARTS[part]]


def written(part: str) -> list[tuple[str, ...]]:
    """What it says."""
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {part} -->")[2].partition("<!-- end -->")[0]
    return [
        tuple(cell.strip() for cell in line[1:-1].split("|")) for line in text.splitlines() if line.startswith("| ")
    ][1:]


def _write() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for part in PARTS:
        before, mark, rest = text.partition(f"<!-- {part} -->\n")
        lines = ["| way of the text | marked as | what happened | end |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows(part)]
        text = f"{before}{mark}" + "\n".join(lines) + f"\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
