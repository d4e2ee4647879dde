"""How a process begins to be measured: its session, its identity and its declared fields."""
