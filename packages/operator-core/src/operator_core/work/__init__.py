"""Work: claims tickets, runs their sessions phase by phase, and survives being killed anywhere."""
