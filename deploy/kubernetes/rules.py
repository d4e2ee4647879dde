"""Write the alert and recording rules as PrometheusRule objects, for clusters with the Prometheus operator.

One object for each rule file that deploy/prometheus/prometheus.yml names. Needs Python alone.

    python3 deploy/kubernetes/rules.py [FILE]     # default: components/prometheus-operator/rules.yaml beside this file
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMETHEUS = HERE.parent / "prometheus"
RULES = HERE / "components" / "prometheus-operator" / "rules.yaml"


def rules() -> str:
    """The objects as YAML. The rules' text is indented but otherwise unchanged, so that comments stay."""
    config = (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8")
    listed = re.search(r"^rule_files:\n((?:\s+-.*\n)+)", config, re.M)
    if listed is None:
        raise SystemExit(f"{PROMETHEUS / 'prometheus.yml'} has no rule_files")
    documents = []
    for name in re.findall(r"-\s+(\S+)", listed[1]):
        text = (PROMETHEUS / name).read_text(encoding="utf-8")
        documents.append(
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n"
            f"  name: goodput-{Path(name).stem}\nspec:\n{textwrap.indent(text, '  ').rstrip()}\n"
        )
    return "# Written by deploy/kubernetes/rules.py; do not edit.\n" + "---\n".join(documents)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else RULES).write_text(rules(), encoding="utf-8")
