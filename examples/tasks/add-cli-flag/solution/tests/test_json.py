import tempfile
import unittest
from pathlib import Path

from tests.test_levels import levels


class JsonTest(unittest.TestCase):
    def test_it_is_one_sorted_object_on_one_line(self) -> None:
        done = levels("--json", "sample.log")
        self.assertEqual((done.returncode, done.stdout), (0, '{"ERROR": 2, "INFO": 5, "WARNING": 1}\n'))

    def test_a_log_without_levels_is_an_empty_object(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "empty.log")
            log.write_text("no level here\n", "utf-8")
            self.assertEqual(levels("--json", str(log)).stdout, "{}\n")

    def test_a_missing_file_is_named(self) -> None:
        done = levels("--json", "nowhere.log")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nowhere.log", done.stderr)


if __name__ == "__main__":
    unittest.main()
