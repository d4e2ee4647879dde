"""The aggregator: merges the reports of all ranks, keeps them in the ledger, and serves accounts, series and the page."""
