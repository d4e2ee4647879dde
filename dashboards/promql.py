"""PromQL that several boards share."""

from __future__ import annotations

RATE = "$__rate_interval"
# label_replace's arguments: the label `node` is the instance without its port.
NODE_NAME = '"node", "$1", "instance", "(.+?)(?::[0-9]+)?"'
# And `uuid` is the beginning of the label `gpu`, as long as a legend or a column has room for.
SHORT_UUID = '"uuid", "$1", "gpu", "(?:[A-Z]+-)?(.{1,8}).*"'


def gpu_names(selector: str) -> str:
    """The index of each GPU and its slot, by which it is found in nvidia-smi and in the machine, and its short uuid."""
    names = f"group by (instance, gpu, index, pci) (goodput_gpu_info{{{selector}}})"
    return f"label_replace({names}, {SHORT_UUID})"


# A name of a GPU that fits a legend; tables have the slot and the uuid.
GPU_LEGEND = "{{node}} GPU {{index}}"


def named_gpus(expr: str, selector: str) -> str:
    """A series by GPU, with the index of the GPU and the name of its node, for GPU_LEGEND."""
    return (
        f"label_replace(({expr}) * on (instance, gpu) group_left (index) {gpu_names(selector)}, {NODE_NAME})"
    )


def on_node(expr: str) -> str:
    """A series by instance, with the node's name in the label `node`: the instance without its port, for legends."""
    return f"label_replace({expr}, {NODE_NAME})"


def named_operations(expr: str) -> str:
    """Of time by group and operation, with a name for what no record explains, whose two labels are empty."""
    return f'label_replace({expr}, "operation", "not recorded", "operation", "")'


def rate_of(series: str, by: str = "", selector: str = "", window: str = RATE) -> str:
    """The sum of a counter's rates, by these labels."""
    braces = f"{{{selector}}}" if selector else ""
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{braces}[{window}]))"


def top_over_range(count: int, expr: str, by: str, choose: str = "topk") -> str:
    """The same few series over the whole time range: those with the largest mean, by these labels.

    topk() in a range query chooses anew at each moment, and would draw broken lines of any number of series.
    """
    return f"{expr} and on ({by}) {choose}({count}, avg_over_time(({expr})[$__range:$__interval] @ end()))"


def quantiles(series: str, selector: str, by: str = "") -> dict[str, str]:
    """p50, p95 and p99 of a series that has them by the label q."""
    braces = f"max{f' by ({by}) ' if by else ''}({series}{{{selector},q="
    return {q: f'{braces}"{q}"}})' for q in ("p50", "p95", "p99")}
