"""Reading a bash command without running it: which programs it names, and how their statuses are joined.

It reads what checks and verifiers usually write. Anything else is :class:`NotRead`, and whoever asked must not guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from operator_core.verify.words import NotRead, Word, tokens

__all__ = [
    "AndOr",
    "Group",
    "If",
    "Listing",
    "Loop",
    "Node",
    "NotRead",
    "Pipeline",
    "Simple",
    "Word",
    "parse",
    "shell_script",
    "simples",
    "unwrapped",
    "uses",
]

_REDIRECTS = frozenset(["&>>", "<<<", "<<-", "<<", ">>", "<&", ">&", "&>", "<>", ">|", "<", ">"])
_INTO_FILE = frozenset([">", ">>", "&>", "&>>", ">|"])
_RESERVED = frozenset(["then", "elif", "else", "fi", "do", "done", "}"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")
_DEPTH_MAX = 40


class Simple(NamedTuple):
    """A program and its arguments; only assignments if there are no words."""

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    redirects: tuple[tuple[str, Word], ...]


class Pipeline(NamedTuple):
    """Commands whose output flows on."""

    negated: bool
    stages: tuple[Node, ...]


class AndOr(NamedTuple):
    """Pipelines and the operator before each (``&&``, ``||``; empty before the first)."""

    parts: tuple[tuple[str, Pipeline], ...]


class Listing(NamedTuple):
    """Commands one after the other, and whether each runs in the background."""

    items: tuple[tuple[AndOr, bool], ...]


class If(NamedTuple):
    """Conditions with what follows each, and what else."""

    arms: tuple[tuple[Listing, Listing], ...]
    otherwise: Listing | None


class Loop(NamedTuple):
    """``while`` and ``until`` have a condition, ``for`` has words."""

    condition: Listing | None
    words: tuple[Word, ...]
    body: Listing


class Group(NamedTuple):
    """``( … )`` or ``{ …; }``, perhaps redirected."""

    subshell: bool
    body: Listing
    redirects: tuple[tuple[str, Word], ...]


Node: TypeAlias = Simple | If | Loop | Group


def parse(command: str) -> Listing:
    """The structure of a bash command.

    Raises:
        NotRead: It has a construct that is not read here, or is no valid bash.
    """
    parser = _Parser(tokens(command))
    listing = parser.listing(frozenset())
    if parser.peek() is not None:
        raise NotRead("unexpected word")
    return listing


def simples(node: Listing | Node) -> Iterator[Simple]:
    """Every simple command, those in substitutions and in ``bash -c '…'`` too (what cannot be read there is not)."""
    for simple, _ in uses(node):
        yield simple


def uses(node: Listing | Node, decides: bool = True) -> Iterator[tuple[Simple, bool]]:
    """Every simple command, and whether its exit status can decide rather than its output (see :func:`simples`)."""
    yield from _uses(node, decides, 0)


def _uses(node: Listing | Node, decides: bool, depth: int) -> Iterator[tuple[Simple, bool]]:
    if depth > _DEPTH_MAX:
        return
    words: tuple[Word, ...] = ()
    inner: list[tuple[Listing | Node, bool]] = []
    if isinstance(node, Listing):
        for pipeline in (pipeline for item, _ in node.items for _, pipeline in item.parts):
            for number, stage in enumerate(pipeline.stages, 1):
                inner.append((stage, decides and all(map(_passes_on, pipeline.stages[number:]))))
    elif isinstance(node, If):
        inner += [(part, decides) for arm in node.arms for part in arm]
        inner += [(node.otherwise, decides)] if node.otherwise else []
    elif isinstance(node, Loop):
        inner += [(node.condition, decides)] if node.condition else []
        inner.append((node.body, decides))
        words = node.words
    elif isinstance(node, Group):
        inner.append((node.body, decides))
        words = tuple(word for _, word in node.redirects)
    else:
        yield node, decides and not any(op in _INTO_FILE and w.text != "/dev/null" for op, w in node.redirects)
        words = (*node.assignments, *node.words, *(word for _, word in node.redirects))
        script = shell_script(node)
        if script is not None:
            inner += [(part, decides) for part in _parsed(script)]
    inner += [(part, False) for word in words for text in word.substitutions for part in _parsed(text)]
    for part, may in inner:
        yield from _uses(part, may, depth + 1)


def _parsed(text: str) -> list[Listing]:
    try:
        return [parse(text)]
    except NotRead:
        return []


def _passes_on(stage: Node) -> bool:
    """Whether a stage of a pipeline only shows what the one before it wrote."""
    return isinstance(stage, Simple) and bool(stage.words) and stage.words[0].text in ("cat", "head", "tail", "tee")


def shell_script(simple: Simple) -> str | None:
    """The script of ``bash -c 'SCRIPT'``, if it is that and literal."""
    words = unwrapped(simple.words)
    if not words or words[0].text.rpartition("/")[2] not in ("bash", "sh", "dash", "zsh"):
        return None
    for number, word in enumerate(words[1:], 1):
        if not word.text.startswith("-"):
            return None
        if not word.text.startswith("--") and "c" in word.text:
            script = words[number + 1 : number + 2]
            return script[0].text if script and script[0].literal else None
    return None


# Programs that run another program: options that take a value, and how many words stand before the program.
_WRAPPERS = {
    "command": ("", 0), "builtin": ("", 0), "exec": ("a", 0), "time": ("fo", 0), "nohup": ("", 0), "setsid": ("", 0),
    "nice": ("n", 0), "ionice": ("cnp", 0), "stdbuf": ("ioe", 0), "timeout": ("ks", 1), "sudo": ("ugh", 0),
    "env": ("uCS", 0), "xargs": ("IiLlnPsdEa", 0), "caffeinate": ("", 0), "chrt": ("", 1), "unbuffer": ("", 0),
}  # fmt: skip


def unwrapped(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The words from the program on that really works: without ``env A=1``, ``timeout 5``, ``time`` and the like."""
    while words:
        name = words[0].text.rpartition("/")[2]
        wrapper = _WRAPPERS.get(name)
        if wrapper is None or not words[0].literal:
            return words
        valued, positional = wrapper
        rest = list(words[1:])
        while rest and (rest[0].text.startswith("-") or (name == "env" and _ASSIGNMENT.match(rest[0].text))):
            option = rest.pop(0).text
            if option == "--":
                break
            if len(option) == 2 and option[1] in valued and rest and option[0] == "-":
                rest.pop(0)
        words = tuple(rest[positional:])
    return words


class _Parser:
    def __init__(self, found: list[Word | str]) -> None:
        self.tokens = found
        self.at = 0
        self.depth = 0

    def peek(self) -> Word | str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _is(self, *texts: str) -> bool:
        """Whether a bare word of the shell's own language is next."""
        token = self.peek()
        return isinstance(token, Word) and not token.quoted and token.literal and token.text in texts

    def _take(self, *texts: str) -> str:
        token = self.peek()
        self.at += 1
        text = token if isinstance(token, str) else token.text if token and not token.quoted else ""
        if text not in texts:
            raise NotRead(f"no {' or '.join(texts)}")
        return text

    def listing(self, ends: frozenset[str]) -> Listing:
        """Commands up to one of the ends (reserved words or ``)``), which is not taken."""
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise NotRead("nested too deeply")
        items: list[tuple[AndOr, bool]] = []
        while True:
            while self.peek() == "\n":
                self.at += 1
            token = self.peek()
            if token is None or token == ")" or (self._is(*_RESERVED) and self._is(*ends)):
                break
            item = self._and_or()
            token = self.peek()
            items.append((item, token == "&"))
            if token in (";", "&", "\n"):
                self.at += 1
            elif not (token is None or token == ")" or self._is(*ends)):
                raise NotRead("unexpected word")
        self.depth -= 1
        return Listing(tuple(items))

    def _and_or(self) -> AndOr:
        parts = [("", self._pipeline())]
        while (operator := self.peek()) in ("&&", "||"):
            self.at += 1
            while self.peek() == "\n":
                self.at += 1
            parts.append((str(operator), self._pipeline()))
        return AndOr(tuple(parts))

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._is("!"):
            self.at += 1
            negated = not negated
        stages = [self._command()]
        while self.peek() in ("|", "|&"):
            self.at += 1
            while self.peek() == "\n":
                self.at += 1
            stages.append(self._command())
        return Pipeline(negated, tuple(stages))

    def _command(self) -> Node:
        if self.peek() == "(":
            if self.tokens[self.at + 1 : self.at + 2] == ["("]:
                raise NotRead("arithmetic")
            return self._group("(", ")", subshell=True)
        if self._is("{"):
            return self._group("{", "}", subshell=False)
        if self._is("if"):
            return self._if()
        if self._is("while", "until"):
            self.at += 1
            condition = self._body("do")
            return self._loop(condition, ())
        if self._is("for"):
            return self._for()
        if self._is("!", "case", "select", "function", "coproc", *_RESERVED):
            raise NotRead("a construct that is not read")
        return self._simple()

    def _body(self, *ends: str) -> Listing:
        listing = self.listing(frozenset(ends))
        if not listing.items:
            raise NotRead("nothing to do")
        return listing

    def _group(self, opening: str, closing: str, *, subshell: bool) -> Group:
        self._take(opening)
        body = self._body(closing)
        self._take(closing)
        return Group(subshell, body, self._redirects())

    def _if(self) -> If:
        arms: list[tuple[Listing, Listing]] = []
        otherwise: Listing | None = None
        word = self._take("if")
        while word != "fi":
            if word == "else":
                otherwise = self._body("fi")
                self._take("fi")
                break
            condition = self._body("then")
            self._take("then")
            arms.append((condition, self._body("elif", "else", "fi")))
            word = self._take("elif", "else", "fi")
        self._no_redirects()
        return If(tuple(arms), otherwise)

    def _for(self) -> Loop:
        self._take("for")
        if not isinstance(self.peek(), Word):
            raise NotRead("an arithmetic loop")
        self.at += 1
        words: list[Word] = []
        if self._is("in"):
            self.at += 1
            while isinstance(token := self.peek(), Word):
                words.append(token)
                self.at += 1
        while self.peek() in (";", "\n"):
            self.at += 1
        return self._loop(None, tuple(words))

    def _loop(self, condition: Listing | None, words: tuple[Word, ...]) -> Loop:
        self._take("do")
        body = self._body("done")
        self._take("done")
        self._no_redirects()
        return Loop(condition, words, body)

    def _no_redirects(self) -> None:
        if self._redirects():
            raise NotRead("a redirected construct")

    def _redirects(self) -> tuple[tuple[str, Word], ...]:
        found: list[tuple[str, Word]] = []
        while (token := self.peek()) in _REDIRECTS:
            self.at += 1
            target = self.peek()
            if not isinstance(target, Word):
                raise NotRead("a redirection to nothing")
            found.append((str(token), target))
            self.at += 1
        return tuple(found)

    def _simple(self) -> Simple:
        assignments: list[Word] = []
        words: list[Word] = []
        redirects: list[tuple[str, Word]] = []
        in_test = False
        while (token := self.peek()) is not None:
            if in_test and token != "\n":
                self.at += 1
                word = token if isinstance(token, Word) else Word(token, quoted=True)
                words.append(word)
                in_test = not (word.text == "]]" and not word.quoted)
            elif isinstance(token, Word):
                self.at += 1
                if not words and _ASSIGNMENT.match(token.text):
                    if self.peek() == "(" and token.text.endswith("="):
                        raise NotRead("an array")
                    assignments.append(token)
                    continue
                in_test = not words and token.text == "[[" and not token.quoted
                words.append(token)
            elif token in _REDIRECTS:
                redirects += self._redirects()
            elif token == "(":
                raise NotRead("a function")
            else:
                break
        if in_test or not (words or assignments or redirects):
            raise NotRead("an incomplete command")
        return Simple(tuple(assignments), tuple(words), tuple(redirects))
