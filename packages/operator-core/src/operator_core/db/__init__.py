"""The store: tickets, the work queue and the journal, on SQLite or PostgreSQL with the same statements."""
