"""Entries as they are shown: what came out of a call, also when its text was cut."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core import clock
from operator_core.api.models import EntryView
from operator_core.web.steps import Output, output_of


def result(raw: str | None, cut: int = 0, **values: Any) -> EntryView:
    fields: dict[str, Any] = {
        "seq": 1,
        "timestamp": clock.now() + timedelta(0),
        "content": "",
        "prev_hash": "",
        "hash": "",
    }
    return EntryView(entry_type="tool_result", raw_content=raw, cut=cut, **{**fields, **values})


@pytest.mark.parametrize(
    ("raw", "output"),
    [
        ({"stdout": "a\n", "stderr": "b", "exit_code": 1, "timed_out": True}, Output("a\n", "b", True)),
        ({"stdout": "a", "stderr": None}, Output("a", "")),
        ({"error": "interrupted", "partial_output": "so far"}, Output("so far", "interrupted")),
        ({"files": [1]}, Output('{\n  "files": [\n    1\n  ]\n}')),
        ("a file", Output("a file")),
    ],
)
def test_results_are_read(raw: Any, output: Output) -> None:
    assert output_of(result(json.dumps(raw))) == output


@pytest.mark.parametrize("raw", ["plain", "{not json", "", '{"a"', "[1, 2]", "null"])
def test_what_is_no_json_is_shown_as_it_is(raw: str) -> None:
    assert output_of(result(raw)) == Output(raw)


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 200), st.booleans())
def test_a_cut_result_shows_what_is_left_of_it(stdout: str, stderr: str, size: int, ascii_only: bool) -> None:
    whole = json.dumps({"stdout": stdout, "stderr": stderr, "exit_code": 0}, ensure_ascii=ascii_only)
    kept = whole[:size]
    output = output_of(result(kept, cut=len(whole) - len(kept)))
    if len(kept) <= len('{"stdout": "'):
        return
    # An escape for half of a character may have been cut off.
    assert stdout.startswith(output.text) or output.text[:-1] == stdout[: len(output.text) - 1]
    assert not output.error or stdout == output.text
    if len(json.dumps(stdout, ensure_ascii=ascii_only)) + len('{"stdout": ') <= size:
        assert output.text == stdout
