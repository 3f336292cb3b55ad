"""The words and operators of a bash command: quotes, substitutions, comments, here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["NotRead", "Word", "tokens"]

_OPERATORS = (
    "&>>", "<<<", "<<-", "&&", "||", ";;", ";&", "|&", "<<", ">>", "<&", ">&", "&>", "<>", ">|",
    ";", "&", "|", "(", ")", "<", ">", "\n",
)  # fmt: skip


class NotRead(Exception):
    """The command uses something that is not read here."""


class Word(NamedTuple):
    """One word of a command.

    Attributes:
        text: It, without quotes; what is only known when it runs stays as it was written (``$x``).
        literal: Whether the shell has nothing to expand in it but patterns.
        quoted: Whether any of it was quoted.
        substitutions: The commands in ``$(…)``, backquotes and ``<(…)``.
    """

    text: str
    literal: bool = True
    quoted: bool = False
    substitutions: tuple[str, ...] = ()


def tokens(command: str) -> list[Word | str]:
    """The words, and the operators as texts; the texts of here-documents are left out.

    Raises:
        NotRead: A quote, a bracket or a here-document has no end, or holds what is not read here.
    """
    return list(_Lexer(command).tokens())


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.heredocs: list[tuple[Word, bool]] = []

    def tokens(self) -> Iterator[Word | str]:
        text = self.text
        awaits_delimiter: str | None = None
        while self.at < len(text):
            char = text[self.at]
            if char in " \t":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif text.startswith(("<(", ">("), self.at):
                yield self._word()
            elif operator := next((o for o in _OPERATORS if text.startswith(o, self.at)), None):
                self.at += len(operator)
                if operator == "\n":
                    self._skip_heredocs()
                awaits_delimiter = operator if operator in ("<<", "<<-") else None
                yield operator
            else:
                word = self._word()
                if awaits_delimiter:
                    self.heredocs.append((word, awaits_delimiter == "<<-"))
                    awaits_delimiter = None
                elif word.text.isdigit() and not word.quoted and text[self.at : self.at + 1] in ("<", ">"):
                    continue
                yield word
        if self.heredocs:
            raise NotRead("a here-document without its text")

    def _skip_heredocs(self) -> None:
        for delimiter, tabs in self.heredocs:
            while True:
                if self.at >= len(self.text):
                    raise NotRead("a here-document without its end")
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(len(self.text), end + 1)
                if (line.lstrip("\t") if tabs else line) == delimiter.text:
                    break
                if not delimiter.quoted and ("${" in line or "$(" in line or "$[" in line or "`" in line):
                    raise NotRead("a here-document with more than text")
        self.heredocs = []

    def _word(self) -> Word:
        parts: list[str] = []
        literal, quoted = True, False
        found: list[str] = []
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and not text.startswith(("<(", ">("), self.at)):
                break
            if char == "\\":
                parts.append("" if text[self.at + 1 : self.at + 2] == "\n" else text[self.at + 1 : self.at + 2])
                quoted = True
                self.at += 2
            elif char == "'":
                parts.append(self._until("'"))
                quoted = True
            elif char == '"':
                inner, plain, more = self._double()
                parts.append(inner)
                found += more
                literal, quoted = literal and plain, True
            elif char in "$`<>":
                raw, plain, more = self._dollar()
                parts.append(raw)
                found += more
                literal = literal and plain
            else:
                parts.append(char)
                self.at += 1
        return Word("".join(parts), literal, quoted, tuple(found))

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise NotRead("a quote without its end")
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return inner

    def _double(self) -> tuple[str, bool, list[str]]:
        self.at += 1
        parts: list[str] = []
        literal, found = True, list[str]()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(parts), literal, found
            if char == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char in "$`":
                raw, plain, more = self._dollar()
                parts.append(raw)
                found += more
                literal = literal and plain
            else:
                parts.append(char)
                self.at += 1
        raise NotRead("a quote without its end")

    def _dollar(self) -> tuple[str, bool, list[str]]:
        """An expansion: as written, whether it is none after all, and the commands in it."""
        start, text = self.at, self.text
        if text[start] == "`":
            inner = self._until("`")
            return text[start : self.at], False, [inner]
        if text.startswith("$'", start):
            self.at += 1
            while True:
                self.at += 1
                if self.at >= len(text):
                    raise NotRead("a quote without its end")
                if text[self.at] == "\\":
                    self.at += 1
                elif text[self.at] == "'":
                    self.at += 1
                    return text[start + 2 : self.at - 1], False, []
        if text.startswith("$((", start):
            self._brackets("(", ")")
            return text[start : self.at], False, []
        if text.startswith(("$(", "<(", ">("), start):
            self._brackets("(", ")")
            return text[start : self.at], False, [text[start + 2 : self.at - 1]]
        if text.startswith("${", start):
            self._brackets("{", "}")
            return text[start : self.at], False, []
        self.at += 1
        return "$", not re.match(r"[\w@*#?!$-]", text[self.at : self.at + 1]), []

    def _brackets(self, opening: str, closing: str) -> None:
        """Move behind the bracket that closes the one after the current character."""
        depth = 0
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.at += 1
            elif char == "'":
                self._until("'")
                continue
            elif char == '"':
                self._double()
                continue
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    self.at += 1
                    return
            self.at += 1
        raise NotRead("a bracket without its end")
