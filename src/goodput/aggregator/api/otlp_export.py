"""Exports what /metrics shows as OTLP metrics: the exporter's thread, beside the event loop that has the series."""

from __future__ import annotations

import asyncio
import socket

from goodput.aggregator.api.exposition import Exposition
from goodput.otlp.exporter import OtlpExporter
from goodput.otlp.settings import OtlpSettings, Samples

# Of a refresh of all series in the event loop.
COLLECT_SECONDS_MAX = 60.0


class OtlpExport:
    def __init__(self, exposition: Exposition, settings: OtlpSettings):
        host = socket.gethostname()
        names = {"service.name": "goodput-aggregator", "service.instance.id": settings.instance or host}
        names["host.name"] = host
        self._exposition = exposition
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exporter = exposition.otlp = OtlpExporter(settings, "goodput_aggregator", self._collect, names)

    async def run(self) -> None:
        """Export until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._exporter.start()
        try:
            await asyncio.Event().wait()
        finally:
            # Not waited for: its thread may be waiting for this loop.
            self._exporter.stop(0)

    def _collect(self) -> Samples:
        """Called by the exporter's thread."""
        assert self._loop
        samples = asyncio.run_coroutine_threadsafe(self._exposition.samples(), self._loop)
        try:
            return samples.result(COLLECT_SECONDS_MAX)
        finally:
            samples.cancel()
