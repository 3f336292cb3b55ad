import unittest

from shipping import abroad, domestic


class ShippingTest(unittest.TestCase):
    def test_a_small_parcel(self) -> None:
        self.assertEqual((domestic(1, 1000), abroad(1, 1000)), (390, 780))

    def test_free_from_a_value_on(self) -> None:
        self.assertEqual((domestic(1, 5000), abroad(1, 15_000)), (0, 0))

    def test_too_heavy(self) -> None:
        with self.assertRaises(ValueError):
            domestic(31, 1000)
