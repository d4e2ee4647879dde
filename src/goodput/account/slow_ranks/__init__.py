"""Rules by which `straggler` compares ranks: in which steps, in which phase, and in which stage of a pipeline one is slow."""
