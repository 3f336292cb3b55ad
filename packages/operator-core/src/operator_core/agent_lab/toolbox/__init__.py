"""The tools with which agents work: a shell, files, and background jobs. Each call passes the gateway."""
