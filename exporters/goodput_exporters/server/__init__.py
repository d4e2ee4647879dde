"""The agent's HTTP server and who may read from it."""
