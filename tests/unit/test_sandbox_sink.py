"""Head, tail and spill: whatever the chunks, they are the bytes that came."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.sandbox import Stream
from operator_core.sandbox.sink import LogSink, StreamSink


@given(
    chunks=st.lists(st.binary(max_size=40), max_size=30),
    head=st.integers(0, 20),
    tail=st.integers(0, 20),
    cap=st.integers(0, 300),
)
def test_keeps_exactly_the_first_and_the_last_bytes(chunks: list[bytes], head: int, tail: int, cap: int) -> None:
    data = b"".join(chunks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "deep", "stdout")
        sink = StreamSink(head, tail, path, cap)
        for chunk in chunks:
            # The pump's buffer is used again after the call: keeping a view of it would keep other bytes.
            buffer = bytearray(chunk)
            sink.feed(memoryview(buffer))
            buffer[:] = b"\xff" * len(buffer)
        stream = sink.close()
        assert stream.total == len(data)
        assert stream.head == data[:head]
        rest = data[head:]
        assert stream.tail == (rest[-tail:] if tail else b"")
        assert stream.omitted == len(data) - len(stream.head) - len(stream.tail)
        if len(data) <= head + tail or not cap:
            assert stream.spill is None
            assert not path.exists()
        else:
            assert stream.spill == path
            assert path.read_bytes() == data[:cap]
            assert path.stat().st_mode & 0o077 == 0


def test_memory_stays_bounded_by_head_and_tail() -> None:
    sink = StreamSink(100, 100)
    for _ in range(10_000):
        sink.feed(b"x" * 150)
    assert len(sink._head) + len(sink._tail) <= 100 + 2 * 100


def test_a_full_disk_ends_the_file_and_not_the_command() -> None:
    sink = StreamSink(1, 1, Path("/dev/full"))
    sink.feed(b"abcdef")
    sink.feed(b"ghi")
    stream = sink.close()
    assert (stream.head, stream.tail, stream.total, stream.spill) == (b"a", b"i", 9, None)
    assert "the rest was not kept" in stream.text()


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    os.symlink(victim, tmp_path / "stdout")
    sink = StreamSink(0, 0, tmp_path / "stdout")
    sink.feed(b"evil")
    assert sink.close().spill is None
    assert victim.read_text() == "mine"


def test_text_is_bounded_and_says_what_is_missing() -> None:
    stream = Stream(b"first\xff", b"last", 1000, Path("/out/stdout"))
    assert stream.text() == "first�\n[... 990 bytes omitted of 1000; the output is in /out/stdout ...]\nlast"
    assert Stream(b"ab\xe2\x82", b"\xac", 5, None).text() == "ab€"


def test_a_log_has_everything_up_to_its_cap(tmp_path: Path) -> None:
    log = LogSink(tmp_path / "job.log", 5)
    assert (tmp_path / "job.log").read_bytes() == b""
    log.feed(b"abc")
    log.feed(b"def")
    assert (log.total, log.close().total) == (6, 6)
    assert (tmp_path / "job.log").read_bytes() == b"abcde"


@pytest.mark.parametrize("size", [1, 199, 200, 201, 5000])
def test_chunks_larger_than_everything(size: int) -> None:
    data = os.urandom(size)
    sink = StreamSink(100, 100)
    sink.feed(data)
    stream = sink.close()
    assert stream.head == data[:100]
    assert stream.tail == data[100:][-100:]
