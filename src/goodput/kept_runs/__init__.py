"""A user's runs as run logs in a bounded folder, so that they can be read and compared without a server.

The process beside `goodput run` writes them (`beside_run`); of other runs the next command keeps what their pages hold
(`dead_pages`). No trainer writes any of it.
"""
