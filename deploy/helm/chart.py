"""Write the Helm chart: this folder's templates, and beside them the rules, the dashboards and a program that they include.

The templates make the objects of deploy/kubernetes, which tests/deploy/test_deploy_helm.py compares. Needs Python alone.

    python3 deploy/helm/chart.py [FOLDER]     # default: dist/chart/goodput; removed first
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"


def rule_files() -> list[str]:
    """The names under `rule_files:` of prometheus.yml, one in each line."""
    found = re.search(r"^rule_files:\n((?:\s+-.*\n)+)", (PROMETHEUS / "prometheus.yml").read_text(), re.M)
    if found is None:
        raise SystemExit(f"{PROMETHEUS / 'prometheus.yml'} has no rule_files")
    return re.findall(r"-\s+(\S+)", found[1])


def write(folder: Path) -> None:
    """The chart, in place of what `folder` had."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("rules", "dashboards"):
        (folder / name).mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.schema.json"):
        shutil.copy(HERE / name, folder)
    shutil.copytree(HERE / "templates", folder / "templates")
    for name in rule_files():
        shutil.copy(PROMETHEUS / name, folder / "rules")
    for path in (ROOT / "dashboards" / "generated").glob("*.json"):
        shutil.copy(path, folder / "dashboards")
    shutil.copy(ROOT / "deploy" / "kubernetes" / "components" / "ended-jobs" / "ended_jobs.py", folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "chart" / "goodput")
