"""How far a run is, and how long it will still take: from its account document, by whoever reads it."""
