"""A probe of a loader as text of 80 columns."""

from __future__ import annotations

from goodput.account.text import bytes_text, digits, wrap
from goodput.probe.text import unit

COPY_SHARE_SHOWN = 0.01


def render(found: dict) -> str:
    """The table over workers, the limit, the parts alone, and what to use."""
    most = max(point["rate"] for point in found["workers"])
    size = f" in batches of {found['batch_size']}" if found["batch_size"] else ""
    samples = f", {found['samples']:,} samples" if found["samples"] else ""
    lines = [f"{found['dataset']}{samples}{size}", ""]
    lines.append("  workers   batches/s   samples/s   of the best   a worker's ms for a batch")
    for point in found["workers"]:
        mark = "->" if point["workers"] == found["knee"] else "  "
        lines.append(
            f"{mark}{point['workers']:>7}{digits(point['rate']):>12}"
            f"{digits(point['rate'] * point['samples_per_batch']):>12}{point['rate'] / most:>12.0%}    {_parts(point)}"
        )
    limit = found["limit"]
    lines += ["", wrap(f"limit: {limit['name']}; {limit['text']}.", 2), "", _alone(found)]
    if len(found["batch_sizes"]) > 1:
        sizes = ", ".join(
            f"{one['batch_size']}: {digits(one['samples_per_second'])}" for one in found["batch_sizes"]
        )
        lines.append(wrap(f"samples/s by batch size: {sizes}", 2))
    if found["copy"]:
        copy = found["copy"]
        share = "" if copy["of_node"] is None else f", {copy['of_node']:.0%} of what this node can do"
        lines.append(f"copy: {bytes_text(copy['bytes'])} at {unit(copy['bytes_per_second'], 'B/s')}{share}")
    if found["pinning"]:
        pinning = found["pinning"]
        lines.append(f"batches/s pinned {digits(pinning['pinned'])}, pageable {digits(pinning['pageable'])}")
    lines += ["", _use(found), ""]
    lines += [wrap(note, 2) for note in found["notes"]]
    return "\n".join(line.rstrip() for line in lines)


def _parts(point: dict) -> str:
    shown = [(name, seconds * 1e3) for name, seconds in (*point["parts"].items(), ("idle", point["idle"]))]
    largest = sorted((part for part in shown if part[1] >= 0.05), key=lambda part: -part[1])[:2]
    return ", ".join(f"{name} {digits(ms)}" for name, ms in largest)


def _alone(found: dict) -> str:
    alone = found["alone"]
    copy = f"the copy alone {digits(alone['copy'])}"
    if alone["copy"] * COPY_SHARE_SHOWN > alone["both"]:
        copy = f"the copy is less than {COPY_SHARE_SHOWN:.0%} of it"
    return wrap(
        f"batches/s with {found['knee']} workers: the loader alone {digits(alone['loader'])}, "
        f"with the copy {digits(alone['both'])}; {copy}",
        2,
    )


def _use(found: dict) -> str:
    use, now = found["use"], found["now"]
    setting = f"num_workers={use['num_workers']}"
    more = "" if found["limit"]["saturated"] else "; with more workers (--workers-max) it may be faster still"
    if found["pinning"]:
        setting += f", pin_memory={use['pin_memory']}"
    if use == {"num_workers": now["num_workers"], "pin_memory": now["pin_memory"]}:
        return wrap(f"use: {setting}, as now{more}", 2)
    gain = f", {digits(found['gain'])} times as fast" if found["gain"] >= 1.05 else ", as fast"
    return wrap(f"use: {setting}{gain} as now with num_workers={now['num_workers']}{more}", 2)
