"""Values that turn all optional parts of the chart on."""

EVERYTHING = {
    "postgresql": {"enabled": True},
    "endedJobs": {"enabled": True, "namespaces": ["training"]},
    "stream": {"enabled": True},
    "otlp": {"enabled": True},
    "certManager": {"enabled": True},
    "prometheusOperator": {"enabled": True},
}
