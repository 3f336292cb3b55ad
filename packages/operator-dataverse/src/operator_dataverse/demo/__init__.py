"""The demo: tasks go from rows of the double to rows of the double, through a real worker."""
