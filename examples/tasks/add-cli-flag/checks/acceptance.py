"""What the option must do, and whether the tests that came with it see when it does not. Exit code 0: all is well."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).parent
LOG = "t ERROR b\nt INFO a\nt DEBUG x\nt INFO a\n"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60)


class TheOption(unittest.TestCase):
    def setUp(self) -> None:
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.room = Path(room.name)

    def levels(self, text: str, *options: str) -> tuple[int, str]:
        (self.room / "a.log").write_text(text, "utf-8")
        done = run(HERE, "levels.py", *options, str(self.room / "a.log"))
        return done.returncode, done.stdout

    def test_it_prints_one_object_on_one_line_in_order(self) -> None:
        self.assertEqual(self.levels(LOG, "--json"), (0, '{"DEBUG": 1, "ERROR": 1, "INFO": 2}\n'))

    def test_an_empty_log_is_an_empty_object(self) -> None:
        self.assertEqual(self.levels("nothing\n", "--json"), (0, "{}\n"))

    def test_many_lines(self) -> None:
        code, text = self.levels("t ERROR b\n" * 12345, "--json")
        self.assertEqual((code, json.loads(text)), (0, {"ERROR": 12345}))

    def test_without_it_nothing_has_changed(self) -> None:
        self.assertEqual(self.levels(LOG), (0, "INFO 2\nERROR 1\nDEBUG 1\n"))

    def test_a_file_that_cannot_be_read(self) -> None:
        done = run(HERE, "levels.py", "--json", str(self.room / "nowhere.log"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nowhere.log", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_it_is_documented(self) -> None:
        self.assertIn("--json", run(HERE, "levels.py", "--help").stdout)
        self.assertIn("--json", (HERE / "README.md").read_text("utf-8"))


class ItsTests(unittest.TestCase):
    def outcome(self, old: str, new: str) -> int:
        """What the new tests say of a program in which something is replaced."""
        with tempfile.TemporaryDirectory() as room:
            folder = Path(room, "copy")
            shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
            program = folder / "levels.py"
            program.write_text(program.read_text("utf-8").replace(old, new), "utf-8")
            return run(folder, "-m", "unittest", "-q", "tests.test_json").returncode

    def test_they_pass(self) -> None:
        self.assertEqual(self.outcome("", ""), 0)

    def test_they_fail_without_the_option(self) -> None:
        self.assertNotEqual(self.outcome("--json", "--other"), 0)

    def test_they_fail_when_it_counts_wrongly(self) -> None:
        self.assertNotEqual(self.outcome("ERROR", "FATAL"), 0)


if __name__ == "__main__":
    unittest.main()
