import unittest

from bills import split


class SplitTest(unittest.TestCase):
    def test_an_even_bill(self) -> None:
        self.assertEqual(split(900, 3), [300, 300, 300])

    def test_no_cent_is_lost(self) -> None:
        self.assertEqual(split(1000, 3), [334, 333, 333])

    def test_somebody_must_pay(self) -> None:
        with self.assertRaises(ValueError):
            split(900, 0)


if __name__ == "__main__":
    unittest.main()
