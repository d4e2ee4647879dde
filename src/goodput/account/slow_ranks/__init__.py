"""Rules by which ranks are compared: in which steps, phase and stage of a pipeline one is slow, or in calling collectives."""
