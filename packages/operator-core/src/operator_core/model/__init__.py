"""Pure types, no I/O: tickets and their transition table, journal entries, verdicts, outcomes, invariants, usage."""
