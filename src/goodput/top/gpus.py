"""Activity and power of the GPUs of this machine's ranks, from the series of its node agent."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from goodput_exporters.push.client import AggregatorClient
from goodput_exporters.push.credentials import NONE_NEEDED, Unreachable

SECONDS_MAX = 2.0
# The driver's own coarse measure, as tools show it, else what is closest.
UNITS = ("utilization", "engine", "sm")
_NAMES = ("goodput_gpu_rank_info{", "goodput_gpu_activity_ratio{", "goodput_gpu_power_watts{")


class AgentGpus:
    """The agent at `url`. Without one, or where it requires a token, there are no figures and `problem` says why."""

    def __init__(self, url: str):
        self._client = AggregatorClient(url, NONE_NEEDED)
        self.problem = ""

    def of(self, run: str) -> dict[int, tuple[float | None, float | None]]:
        """By rank of a run: the mean activity of its GPUs (0 to 1) and the sum of their power in watts."""
        try:
            answer = self._client.get("/metrics", SECONDS_MAX)
        except Unreachable as error:
            self.problem = str(error)
            return {}
        self.problem = "" if answer.status == 200 else f"HTTP {answer.status}: {answer.text[:200]}"
        return figures(answer.body.decode("utf-8", "replace"), run) if answer.status == 200 else {}


def figures(exposition: str, run: str) -> dict[int, tuple[float | None, float | None]]:
    """By rank of a run, from the agent's series; as `AgentGpus.of`."""
    lines = [line for line in exposition.split("\n") if line.startswith(_NAMES)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return {}
    gpus: defaultdict[int, set[str]] = defaultdict(set)
    activity: dict[tuple[str, str], float] = {}
    power: dict[str, float] = {}
    for sample in (one for family in families for one in family.samples):
        labels = sample.labels
        if sample.name == "goodput_gpu_rank_info" and labels["run"] == run and labels["rank"].isdigit():
            gpus[int(labels["rank"])].add(labels["gpu"])
        elif sample.name == "goodput_gpu_activity_ratio":
            activity[labels["gpu"], labels["unit"]] = sample.value
        elif sample.name == "goodput_gpu_power_watts":
            power[labels["gpu"]] = sample.value
    return {rank: (_activity(activity, own), _power(power, own)) for rank, own in gpus.items()}


def _activity(activity: dict[tuple[str, str], float], gpus: set[str]) -> float | None:
    for unit in UNITS:
        known = [activity[gpu, unit] for gpu in gpus if (gpu, unit) in activity]
        if known:
            return sum(known) / len(known)
    return None


def _power(power: dict[str, float], gpus: set[str]) -> float | None:
    known = [power[gpu] for gpu in gpus if gpu in power]
    return sum(known) if known else None
