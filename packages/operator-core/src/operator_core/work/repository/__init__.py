"""Where the work of a task comes from and where its result goes: repositories, plain folders, and git."""
