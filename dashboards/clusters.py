"""Every query of the boards reads the chosen cluster alone, whether or not its author thought of clusters.

Series have the label `cluster` where several clusters share a Prometheus or its long-term storage; elsewhere the label
is absent, the variable has the option "All" alone, and its pattern matches the absent label.

    in_cluster('sum by (run) (up{job="x"})')    # 'sum by (cluster, run) (up{job="x",cluster=~"$cluster"})'
"""

from __future__ import annotations

import re

MATCHER = 'cluster=~"$cluster"'
# What tells runs and nodes apart only together with their cluster.
_NAMES = {"run", "instance", "host"}
_KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "atan2", "start", "end"}
_LISTS = {"by", "on", "without", "ignoring", "group_left", "group_right"}
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<braces>\{(?:"(?:[^"\\]|\\.)*"|[^{}"])*\})
      | (?P<range>\[[^\]]*\])
      | (?P<list>\b(?:by|on|without|ignoring|group_left|group_right)\s*\((?P<names>[^()]*)\))
      | (?P<variable>\$\w+|\$\{[^}]*\})
      | (?P<number>\b\d[\w.]*)
      | (?P<name>[a-zA-Z_:][\w:]*)(?P<call>\s*\()?""",
    re.VERBOSE,
)


def in_cluster(expr: str) -> str:
    """The expression, with every selector limited to the chosen cluster and every join and sum of runs and nodes by it."""
    out, at, after_name = [], 0, False
    for found in _TOKEN.finditer(expr):
        between = expr[at : found.start()]
        is_aggregation = found["list"] is not None and found[0].startswith(("by", "without"))
        if after_name and found["braces"] is None and not is_aggregation:
            out.append(f"{{{MATCHER}}}")
        out.append(between)
        text = found[0]
        if found["braces"] is not None:
            text = _limited(text[1:-1].strip().rstrip(","))
        elif found["list"] is not None:
            text = _with_cluster(text, found["names"])
        after_name = found["name"] is not None and found["call"] is None and text not in _KEYWORDS | _LISTS
        out.append(text)
        at = found.end()
    if after_name:
        out.append(f"{{{MATCHER}}}")
    return "".join([*out, expr[at:]])


def _limited(matchers: str) -> str:
    if re.search(r"(?:^|,)\s*cluster\s*[=!]", matchers):
        return f"{{{matchers}}}"
    return f"{{{matchers},{MATCHER}}}" if matchers else f"{{{MATCHER}}}"


def _with_cluster(text: str, names: str) -> str:
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if not text.startswith(("by", "on")) or "cluster" in listed or not _NAMES & set(listed):
        return text
    return f"{text[:2]} ({', '.join(['cluster', *listed])})"


def query_in_cluster(text: str) -> str:
    """A variable's query, label_values(SELECTOR, LABEL), limited to the chosen cluster."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
    if found is None:
        raise ValueError(f"{text!r} is not label_values(SELECTOR, LABEL)")
    return f"label_values({in_cluster(found[1])}, {found[2]})"
