"""Pages of the console, rendered on the server; all of them can be read without JavaScript."""
