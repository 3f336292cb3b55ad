import unittest

from rounding import cents


class LedgerTest(unittest.TestCase):
    """The auditors: half a cent is rounded to the even cent, so that sums do not drift."""

    def test_half_a_cent(self) -> None:
        self.assertEqual([cents(amount) for amount in ("0.115", "0.125", "0.135")], [12, 12, 14])
