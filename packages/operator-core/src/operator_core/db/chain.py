"""One hash chain, walked row by row: the first place where it is not what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from operator_core.model.entry import GENESIS

__all__ = ["Chain", "Found", "Problem"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """The first thing that is not as it was written.

    Attributes:
        where: A session's id, ``ledger``, ``blob DIGEST`` or ``ticket #N``.
        seq: Place in the chain of ``where``; None when no single row is meant.
        row_id: ``id`` of the row in its table; None for rows that are gone or have none.
        what: ``altered``, ``missing``, ``reordered``, ``truncated``, ``added``, ``head mismatch``, ``session missing``,
            ``session unknown``, ``session altered``, ``tombstone forged``, ``blob missing``, ``blob altered``,
            ``ticket missing`` or ``ticket altered``.
        sentence: For people.
    """

    where: str
    seq: int | None
    row_id: int | None
    what: str
    sentence: str


class Found(Exception):
    """Carries the first problem out of all loops."""

    def __init__(self, where: str, seq: int | None, row_id: int | None, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.problem = Problem(where, seq, row_id, what, sentence)


class Chain:
    """Walks one chain row by row and raises at its first broken place."""

    def __init__(self, where: str, noun: str, hash_of: Callable[[dict[str, Any]], str], length: int) -> None:
        self.where = where
        self._noun = noun
        self._hash_of = hash_of
        self._length = length
        self.seq = -1
        self.head = GENESIS
        self._last_id: int | None = None
        self._before_torn: int | None = None
        # A row that fits itself but not the one before it: either of the two was rewritten, the next row knows which.
        self._torn: Values | None = None

    def name(self, seq: int) -> str:
        return f"{self._noun} {seq}"

    def found(self, seq: int | None, row_id: int | None, what: str, sentence: str) -> Found:
        return Found(self.where, seq, row_id, what, sentence)

    def feed(self, row: Values) -> None:
        if self._torn is not None:
            self._tell_torn(trusted=row["prev_hash"] == self._torn["hash"])
        seq, row_id, expected = row["seq"], row.get("id"), self.seq + 1
        if seq > expected:
            raise self.found(expected, None, "missing", f"{self.name(expected)} is missing; {seq} comes next.")
        if seq < expected:
            raise self.found(seq, row_id, "altered", f"{self.name(seq)} has a number that was never given.")
        if self._hash_of(dict(row)) != row["hash"]:
            origin = self._origin(row)
            if origin is not None:
                sentence = f"{self.name(seq)} was reordered: what stands there was written as number {origin}."
                raise self.found(seq, row_id, "reordered", sentence)
            raise self.found(seq, row_id, "altered", f"{self.name(seq)} was altered: it does not match its hash.")
        if row.get("created_at", row.get("timestamp")) != row.get("timestamp"):
            raise self.found(seq, row_id, "altered", f"{self.name(seq)} was altered: its two times differ.")
        if row["prev_hash"] != self.head:
            self._torn = row
            self._before_torn = self._last_id
        self.seq, self.head, self._last_id = seq, row["hash"], row_id

    def end(self, head_seq: int, head_hash: str, anchor: tuple[int, str] | None) -> None:
        """All rows were fed.

        Args:
            head_seq: What the head says the last row's number is.
            head_hash: And its hash.
            anchor: The same from the ledger, if the chain is closed.
        """
        if self._torn is not None:
            self._tell_torn(trusted=head_hash == self._torn["hash"])
        here, head = (self.seq, self.head), (head_seq, head_hash)
        if head == here and anchor in (None, here):
            return
        end = head if anchor is None else anchor
        if end == here:
            sentence = f"The head of {self.where} was altered; the ledger and the rows agree on {self.name(self.seq)}."
            raise self.found(head_seq, None, "head mismatch", sentence)
        if end[0] > self.seq:
            first = self.seq + 1
            sentence = f"{self.name(first)} and what followed is missing: {end[0] + 1} were written, {first} are there."
            raise self.found(first, None, "truncated", sentence)
        if end[0] < self.seq and anchor is not None:
            sentence = f"{self.name(end[0] + 1)} was added after the end."
            raise self.found(end[0] + 1, None, "added", sentence)
        if end[0] == self.seq and anchor is not None:
            sentence = f"{self.name(self.seq)} was altered: the ledger has another hash of it."
            raise self.found(self.seq, self._last_id, "altered", sentence)
        sentence = f"{self.name(self.seq)} or the head was altered: the head names {head_seq} with another hash."
        raise self.found(self.seq, self._last_id, "head mismatch", sentence)

    def _tell_torn(self, *, trusted: bool) -> None:
        assert self._torn is not None
        seq, row_id = self._torn["seq"], self._torn.get("id")
        if trusted and seq > 0:
            seq, row_id = seq - 1, self._before_torn
        sentence = f"{self.name(seq)} was altered: it was replaced by another one that fits its own hash."
        raise self.found(seq, row_id, "altered", sentence)

    def _origin(self, row: Values) -> int | None:
        """The place for which this row was written, if it was only moved."""
        values = dict(row)
        for seq in range(self._length):
            values["seq"] = seq
            if seq != row["seq"] and self._hash_of(values) == row["hash"]:
                return seq
        return None
