"""Where the ranks of a run meet: reports in, the account, series and pages out.

Files, in the order of a report's way: app.py (routes), ingest.py (one push), store.py (what came in, in memory),
ledger.py (what outlives the process), accounts.py (the arithmetic, kept while nothing changed), hangs.py (who
hangs, and their stacks), models.py (the API's shapes), exposition.py (Prometheus), page/ (the built-in
page). It never imports the SDK.
"""
