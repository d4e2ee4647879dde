"""How a process begins to be measured: the session, its identity and its declared fields."""
