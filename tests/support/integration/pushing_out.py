"""Prometheus in agent mode and vmagent, which scrape and push, and a Prometheus that receives."""

from __future__ import annotations

from pathlib import Path

from support.servers.servers import Prometheus, Server


class ReceivingPrometheus(Prometheus):
    """Takes remote writes and scrapes nothing."""

    name = "receiving"

    def __init__(self, directory: Path):
        config = Path(directory) / "empty.yml"
        config.write_text("{}\n")
        super().__init__(directory, config)

    def command(self) -> list[str]:
        return [*super().command(), "--web.enable-remote-write-receiver"]


class PrometheusAgent(Server):
    name = "prometheus-agent"
    options = ("--enable-feature=agent", "--config.file=", "--storage.agent.path=")

    def __init__(self, directory: Path, config: Path, _url: str):
        super().__init__(directory)
        self._config = config

    def command(self) -> list[str]:
        feature, config, storage = self.options
        paths = [f"{config}{self._config}", f"{storage}{self.directory / 'data'}"]
        return ["prometheus", feature, *paths, f"--web.listen-address={self.address}", "--log.level=warn"]


class Vmagent(Server):
    name = "vmagent"
    options = (
        *("-promscrape.config=", "-promscrape.config.strictParse=false"),
        *("-remoteWrite.url=", "-remoteWrite.tmpDataPath="),
    )

    def __init__(self, directory: Path, config: Path, url: str):
        super().__init__(directory)
        self._config, self._url = config, url

    def command(self) -> list[str]:
        config, strict, url, data = self.options
        options = [f"{config}{self._config}", strict, f"{url}{self._url}", f"{data}{self.directory / 'data'}"]
        return ["vmagent", *options, f"-httpListenAddr={self.address}", "-remoteWrite.flushInterval=200ms"]


SENDERS = {"prometheus": PrometheusAgent, "vmagent": Vmagent}
