"""Accounts, timelines and summaries of the runs in the store and in the ledger."""
