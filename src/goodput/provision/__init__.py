"""`goodput provision`: certificates, tokens and configuration of a head and its nodes."""
