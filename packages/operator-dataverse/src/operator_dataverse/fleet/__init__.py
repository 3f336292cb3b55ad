"""All dev boxes and all tasks of a fleet: who is alive, what runs, what is taken back, where work goes."""
