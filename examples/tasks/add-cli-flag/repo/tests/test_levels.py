import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).parents[1]


def levels(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "levels.py", *arguments], cwd=HERE, capture_output=True, text=True, timeout=20
    )


class LevelsTest(unittest.TestCase):
    def test_the_most_frequent_level_comes_first(self) -> None:
        done = levels("sample.log")
        self.assertEqual((done.returncode, done.stdout), (0, "INFO 5\nERROR 2\nWARNING 1\n"))

    def test_a_missing_file_is_named(self) -> None:
        done = levels("nowhere.log")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nowhere.log", done.stderr)
