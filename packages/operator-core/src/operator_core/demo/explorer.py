"""The scripted explorer: it looks for long Collatz sequences, and shows what becomes of a context that is full.

It is a program and no model. Like every brain it knows only what it is sent; what it has to remember beyond that is in
the notes of its workspace, as with a model.
"""

from __future__ import annotations

from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn

__all__ = ["CONTEXT_TOKENS", "RESTARTS", "SYSTEM_PROMPT", "explorer_brain"]

CONTEXT_TOKENS = 12_288
"""Small, so that it is full soon."""
RESTARTS = 3
"""So often it begins anew; then the demonstration is over."""

SYSTEM_PROMPT = """\
You explore the Collatz sequences (n -> n/2 if n is even, else 3n+1) of the first natural numbers, block by block.

Keep one line per block in NOTES.md: the number of the block and the longest sequence in it. When your context is wound
down, write into PROGRESS.md how far you are. Report a block with a sequence of more than 265 steps as a discovery.
"""

_BLOCK = (
    "k=$(wc -l < NOTES.md 2>/dev/null || echo 0); k=$((k+1)); "
    "awk -v k=$k 'BEGIN { a = (k-1)*400+1; b = k*400; best = -1; "
    "for (i = a; i <= b; i++) { n = i; s = 0; while (n != 1) { n = n % 2 ? 3*n+1 : n/2; s++ } t[i] = s; "
    'if (s > best) { best = s; at = i } } print "block", k, "longest", best, "at", at >> "NOTES.md"; '
    'for (i = a; i <= b; i += 2) printf "%d:%d ", i, t[i]; print ""; '
    'print "block", k, "longest", best, "at", at }\''
)
_THOUGHT = (
    "The lengths jump about without any order that I could see: neighbours differ by a factor of ten, while whole runs "
    "of them are equal, because their sequences meet after a few steps. I go on with the next block of numbers and "
    "compare its longest sequence with those in my notes. "
)
_LONG = 265
_REST_EVERY = 12


def explorer_brain() -> Brain:
    """The brain; for ``python -m operator_core.scripted`` too."""
    return FunctionBrain(_reply)


def _reply(turn: Turn) -> Reply:
    last = turn.results[-1] if turn.results else None
    if last is None:
        return _run('tail -n 3 NOTES.md PROGRESS.md 2>/dev/null; echo "notes: $(wc -l < NOTES.md 2>/dev/null)"', "")
    if "wrap up your current task" in turn.last_text:
        content = f"Blocks up to {_block_in(last.text)} are in NOTES.md; go on with the next one.\n"
        return Reply(
            text="My context is nearly full, so I write down how far I am.",
            calls=(Call("file_write", {"path": "PROGRESS.md", "content": content}),),
        )
    if last.input.get("command") == _BLOCK and (found := _record_in(last.text)):
        block, steps, at = found
        if steps > _LONG:
            text = f"The sequence that begins with {at} has {steps} steps; it is the longest of block {block}."
            call = Call("discovery", {"title": f"{at} takes {steps} steps", "description": text})
            return Reply(text="That one is long enough to be reported.", calls=(call,))
        if block % _REST_EVERY == 0:
            return Reply(text="Let me think for a moment. That ends my turn, but not my work.")
    return _run(_BLOCK, _THOUGHT * 3)


def _run(command: str, text: str) -> Reply:
    return Reply(text=text.strip(), calls=(Call("shell_exec", {"command": command}),))


def _record_in(text: str) -> tuple[int, int, int] | None:
    """Block, steps and start in the last line of a block's output, if the text has one."""
    words = text.replace("\\n", " ").split()
    for i in range(len(words) - 5, -1, -1):
        part = words[i : i + 6]
        if part[0].endswith("block") and part[2:5:2] == ["longest", "at"] and part[1].isdigit() and part[3].isdigit():
            return int(part[1]), int(part[3]), int("".join(c for c in part[5] if c.isdigit()) or 0)
    return None


def _block_in(text: str) -> str:
    found = _record_in(text)
    return str(found[0]) if found else "the last one"
