"""The routes: ingest, JSON API, Prometheus series and the built-in page."""
