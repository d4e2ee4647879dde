"""Where the time of a run went, by moment: the states of each rank in each cell of a timeline."""
