"""The aggregator's HTTP layer: authentication, browser sessions, middleware and connection limits."""
