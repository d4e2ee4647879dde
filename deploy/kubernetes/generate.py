"""Write the Kubernetes objects that are made from other files: the alert rules and the list of dashboards.

In: the rule files that deploy/prometheus/prometheus.yml names, dashboards/generated/*.json. Out: one PrometheusRule
for each rule file, its text as it is but indented, so that comments stay; and a kustomization.yaml beside the
dashboards, which makes one ConfigMap of each, since kustomize reads no file outside a folder that has its own.
It does not look into rules or dashboards.

    python deploy/kubernetes/generate.py            # write; with --check: exit 1 if something is not current
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = "deploy/kubernetes/components/prometheus-operator/rules.yaml"
DASHBOARDS = "dashboards/generated/kustomization.yaml"
_BY = "# Written by deploy/kubernetes/generate.py; do not edit.\n"


def rules(root: Path = ROOT) -> str:
    """The PrometheusRule objects, as YAML."""
    folder = root / "deploy" / "prometheus"
    config = (folder / "prometheus.yml").read_text(encoding="utf-8")
    listed = re.search(r"^rule_files:\n((?:\s+-.*\n)+)", config, re.M)
    if listed is None:
        raise SystemExit(f"{folder / 'prometheus.yml'}: no rule_files")
    documents = []
    for name in re.findall(r"-\s+(\S+)", listed[1]):
        text = (folder / name).read_text(encoding="utf-8")
        documents.append(
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n"
            f"  name: goodput-{Path(name).stem}\nspec:\n{textwrap.indent(text, '  ').rstrip()}\n"
        )
    return _BY + "---\n".join(documents)


def dashboards(root: Path = ROOT) -> str:
    """The kustomization of the folder of dashboards, as YAML."""
    lines = [
        "apiVersion: kustomize.config.k8s.io/v1beta1",
        "kind: Kustomization",
        "generatorOptions:",
        "  # Grafana's sidecar looks for this label; a name that changed would leave the old board beside the new one.",
        "  disableNameSuffixHash: true",
        "  labels:",
        '    grafana_dashboard: "1"',
        "configMapGenerator:",
    ]
    for path in sorted((root / "dashboards" / "generated").glob("*.json")):
        lines += [f"  - name: {path.stem}-dashboard", "    files:", f"      - {path.name}"]
    return _BY + "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    check = parser.parse_args(arguments).check
    stale = 0
    for name, text in ((RULES, rules()), (DASHBOARDS, dashboards())):
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{name} is not current; run: python deploy/kubernetes/generate.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(name)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
