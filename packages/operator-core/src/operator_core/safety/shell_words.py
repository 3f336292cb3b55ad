"""Taking a shell script apart into its simple commands, as far as that can be done without running it.

Quotes are removed, comments and here-documents left out, and what is nested (substitutions, groups, `if`, functions)
comes out flat. It is a reading aid for the advisor and no shell: what is computed when a script runs stays unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Simple", "split_script"]

_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>#]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME = re.compile(r"\w+")
_CLOSING = re.compile(r"[ \t]*\)")
_IN_DOUBLE = re.compile(r"[^\"\\$`]*")
_OPERATOR = re.compile(r"&>>|&>|<<<|<<-|<<|<>|>>|>\||>&|<&|>|<")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|([nrt\\\"?]))")
_BLANKS = {"n": "\n", "r": "\r", "t": "\t"}
_KEYWORDS = frozenset(
    ["if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "time", "coproc", "fi", "done"]
)
_DEEPEST = 12


@dataclass
class Simple:
    """One simple command.

    Attributes:
        words: Name and arguments, without quotes; a substitution stands there as ``$()``.
        writes: What its output is redirected to.
        stdin: The text of its here-document or here-string.
        inner: The commands of its substitutions.
        pipeline: Number of its pipeline; commands of the same one have the same number.
    """

    words: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    stdin: str | None = None
    inner: list[Simple] = field(default_factory=list)
    pipeline: int = 0


class _Parser:
    def __init__(self, text: str, known: dict[str, str], functions: set[str], depth: int) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self.known, self.functions = known, functions
        self.done: list[Simple] = []
        self.now = Simple()
        self.pipelines = 0
        self._bodies: list[tuple[Simple, str, bool]] = []

    def script(self, until: str = "") -> list[Simple]:
        """All commands up to the closing character, which is taken too."""
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if until and char == until:
                self.at += 1
                break
            if char in " \t\r":
                self.at += 1
            elif char == "\n":
                self.at += 1
                self._end()
                self._read_bodies()
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif text.startswith(("<(", ">("), self.at):
                self._word()
            elif char in "<>" or text.startswith("&>", self.at):
                self._redirect()
            elif char in ";&|":
                self._separator()
            elif char == "(":
                self._open()
            elif char == ")":
                self.at += 1
                self._end()
            else:
                self._word_of_command()
        self._end()
        return self.done

    def _separator(self) -> None:
        text = self.text
        two = text[self.at : self.at + 2]
        size = 2 if two in ("&&", "||", ";;", "|&", ";&") else 1
        piped = two == "|&" or (text[self.at] == "|" and two != "||")
        self.at += size
        self._end(piped=piped)

    def _open(self) -> None:
        self.at += 1
        closing = _CLOSING.match(self.text, self.at)
        if len(self.now.words) == 1 and closing:  # `name ()`: a function
            self.functions.add(self.now.words[0])
            self.now = Simple()
            self.at = closing.end()
        else:
            self._end()

    def _end(self, *, piped: bool = False) -> None:
        command, self.now = self.now, Simple()
        while command.words and command.words[0] in _KEYWORDS:
            command.words.pop(0)
        if command.words and command.words[0] == "function" and len(command.words) > 1:
            self.functions.add(command.words[1])
            command.words = [word for word in command.words[2:] if word != "{"]
        while command.words and _ASSIGNMENT.match(command.words[0]):
            name, _, value = command.words.pop(0).partition("=")
            self.known[name.rstrip("+")] = value
        command.pipeline = self.pipelines
        if command.words or command.writes or command.inner:
            self.done.append(command)
        if not piped:
            self.pipelines += 1

    def _word_of_command(self) -> None:
        start = self.at
        word = self._word()
        if word.isdigit() and self.at < len(self.text) and self.text[self.at] in "<>" and self.at - start == len(word):
            return  # the number of a descriptor
        self.now.words.append(word)
        if self.at == start:  # nothing that this parser knows
            self.at += 1

    def _word(self) -> str:
        parts: list[str] = []
        text = self.text
        while self.at < len(text):
            if plain := _PLAIN.match(text, self.at):
                parts.append(plain[0])
                self.at = plain.end()
                continue
            char = text[self.at]
            if char == "#" and parts:
                parts.append(char)
                self.at += 1
            elif char == "\\":
                parts.append("" if text[self.at + 1 : self.at + 2] == "\n" else text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "'":
                parts.append(self._until("'"))
            elif char == '"':
                parts.append(self._double())
            elif char in "$`":
                parts.append(self._dollar())
            elif text.startswith(("<(", ">("), self.at):
                self.at += 2
                self._nested(")")
                parts.append("/dev/fd/63")
                self.now.words.append("/dev/fd/63")
                return ""
            else:
                break
        return "".join(parts)

    def _until(self, char: str) -> str:
        end = self.text.find(char, self.at + 1)
        end = len(self.text) if end < 0 else end
        found = self.text[self.at + 1 : end]
        self.at = end + 1
        return found

    def _double(self) -> str:
        parts: list[str] = []
        self.at += 1
        text = self.text
        while self.at < len(text) and text[self.at] != '"':
            char = text[self.at]
            if char == "\\" and text[self.at + 1 : self.at + 2] in ("$", '"', "\\", "`", "\n"):
                parts.append(text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                parts.append(self._dollar(quoted=True))
            else:
                end = _IN_DOUBLE.match(text, self.at + 1)
                assert end is not None
                parts.append(text[self.at : end.end()])
                self.at = end.end()
        self.at += 1
        return "".join(parts)

    def _dollar(self, *, quoted: bool = False) -> str:
        text = self.text
        if text[self.at] == "`":
            inside = self._until("`")
            self.now.inner += _split(inside, self.known, self.functions, self.depth + 1)
            return "$()"
        following = text[self.at + 1 : self.at + 2]
        if text.startswith("$((", self.at) and (end := text.find("))", self.at)) >= 0:
            self.at = end + 2
            return "0"
        if following == "(":
            self.at += 2
            self._nested(")")
            return "$()"
        if following == "'" and not quoted:
            self.at += 1
            return _ESCAPE.sub(_character, self._until("'"))
        if following == "{":
            end = text.find("}", self.at)
            end = len(text) if end < 0 else end
            name = text[self.at + 2 : end]
            self.at = end + 1
            return self._value(name)
        if name_match := _NAME.match(text, self.at + 1):
            self.at = name_match.end()
            return self._value(name_match[0])
        self.at += 1
        return "$"

    def _value(self, name: str) -> str:
        return "~" if name == "HOME" else self.known.get(name, f"${name}")

    def _nested(self, until: str) -> None:
        inner = _Parser(self.text, self.known, self.functions, self.depth + 1)
        if self.depth >= _DEEPEST:
            self.at = len(self.text)
            return
        inner.at = self.at
        self.now.inner += inner.script(until)
        self.at = inner.at

    def _redirect(self) -> None:
        operator = _OPERATOR.match(self.text, self.at)
        assert operator is not None
        self.at = operator.end()
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        target = self._word()
        if operator[0] in ("<<", "<<-"):
            self._bodies.append((self.now, target, operator[0] == "<<-"))
        elif operator[0] == "<<<":
            self.now.stdin = target
        elif ">" in operator[0] and not (operator[0] == ">&" and (target.isdigit() or target == "-")):
            self.now.writes.append(target)

    def _read_bodies(self) -> None:
        for command, delimiter, tabs in self._bodies:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = end + 1
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
                lines.append(line)
            command.stdin = "\n".join(lines)
        self._bodies = []


def _character(escape: re.Match[str]) -> str:
    """What an escape in ``$'...'`` stands for; what is none there stays as it is."""
    if code := escape[1] or escape[2]:
        char = chr(int(code, 16))
        return escape[0] if "\ud800" <= char <= "\udfff" else char  # half of a pair is no text
    return chr(int(escape[3], 8) & 0xFF) if escape[3] else _BLANKS.get(escape[4], escape[4])


def _split(text: str, known: dict[str, str], functions: set[str], depth: int) -> list[Simple]:
    return _Parser(text, known, functions, depth).script() if depth < _DEEPEST else []


def split_script(text: str) -> tuple[list[Simple], set[str]]:
    """The simple commands of a script in their order, and the names of the functions that it defines.

    It never fails: what is no shell script comes out as commands that nobody would recognise.
    """
    functions: set[str] = set()
    return _split(text, {}, functions, 0), functions
