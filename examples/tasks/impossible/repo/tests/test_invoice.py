import unittest

from rounding import cents


class InvoiceTest(unittest.TestCase):
    """The tax office: half a cent is rounded up."""

    def test_half_a_cent(self) -> None:
        self.assertEqual([cents(amount) for amount in ("0.115", "0.125", "0.135")], [12, 13, 14])
