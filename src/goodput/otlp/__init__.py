"""Export of the series of /metrics as OTLP/HTTP metrics, through OpenTelemetry's SDK (the extra `otlp`)."""
