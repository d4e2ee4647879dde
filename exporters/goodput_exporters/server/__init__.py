"""The agent's HTTP server and its text exposition."""
