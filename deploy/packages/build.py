"""Build the wheel, and packages of the agent and the aggregator for Debian and RPM systems, with a bill of materials.

    python deploy/packages/build.py [FOLDER]     # default: dist; needs the extra `packages`, and pip's index

`goodput` has the program in /opt/goodput, a virtual environment on the system's Python of the version that runs this;
`goodput-node` and `goodput-aggregator` have the units, and the latter the libraries that only it needs. The same commit,
SOURCE_DATE_EPOCH (default: the commit's time) and Python give the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from portable_wheel import ROOT, build_wheel, git, run

SYSTEMD = ROOT / "deploy" / "systemd"
SLURM = ROOT / "deploy" / "slurm"
SCRIPTS = Path(__file__).resolve().parent / "scripts"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PREFIX = Path("opt/goodput")
EXTRAS = {"goodput": "node,stacks,otlp", "goodput-aggregator": "node,stacks,otlp,server,postgresql,stream"}
DESCRIPTIONS = {
    "goodput": "goodput: where the GPU time of training runs goes; the program",
    "goodput-node": "goodput's agent: rank pages and hardware counters of a node",
    "goodput-aggregator": "goodput's aggregator: account, API, page and series of all runs",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def version() -> str:
    found = re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("pyproject.toml has no version")
    return found[1]


def make_environment(folder: Path, wheel: Path, extras: str, *, libraries: bool) -> None:
    """A virtual environment in `folder` with the wheel and, with `libraries`, all that it needs."""
    run(sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder)
    python = folder / "bin" / "python"
    options = ["--quiet", "--no-compile", "--no-warn-script-location", *([] if libraries else ["--no-deps"])]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, f"{wheel}[{extras}]")


def finish_environment(folder: Path, prefix: str, *, compiled: bool) -> None:
    """Make it one of the system's Python at `prefix`, with the commands that are goodput's and its files compiled."""
    for path in (folder / "bin").iterdir():
        if path.name not in ("py-spy", "goodput"):
            path.unlink()
    for name in ("python", "python3", PYTHON):
        (folder / "bin" / name).symlink_to(f"/usr/bin/{PYTHON}")
    (folder / "bin" / "goodput").write_text(
        f"#!{prefix}/bin/python\nimport sys\n\nfrom goodput.cli import main\n\nsys.exit(main())\n"
    )
    (folder / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {platform.python_version()}\n"
    )
    (folder / "lib64").unlink(missing_ok=True)
    shutil.rmtree(folder / "include", ignore_errors=True)
    for name in ("direct_url.json", "RECORD"):  # pip's own, which name the folder of the build
        for path in folder.glob(f"lib/*/site-packages/*.dist-info/{name}"):
            path.unlink()
    if compiled:
        options = ["--invalidation-mode", "unchecked-hash", "-s", folder, "-p", prefix]
        run(sys.executable, "-m", "compileall", "-q", *options, folder / "lib")
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in folder.rglob("*"):
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def write_bill(path: Path, environment: Path) -> None:
    """A CycloneDX bill of materials of what is in the environment."""
    options = ["--of", "JSON", "--output-reproducible", "--pyproject", ROOT / "pyproject.toml", "-o", path]
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, environment / "bin" / "python")


def take_away(folder: Path, other: Path) -> None:
    """Remove from `folder` what `other` has too."""
    for path in sorted(folder.rglob("*"), reverse=True):
        same = other / path.relative_to(folder)
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif same.exists() or same.is_symlink():
            path.unlink()


def file(source: Path, target: str, mode: int = 0o644, **more) -> dict:
    return {"src": str(source), "dst": target, "file_info": {"mode": mode}, **more}


def write_man_pages(folder: Path) -> None:
    """One for each command, by the sources of this checkout."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run(sys.executable, Path(__file__).with_name("man_pages.py"), folder, env=environment)


def contents(name: str, staged: Path, bill: Path | None, man: Path) -> list[dict]:
    """What a package installs, as nfpm takes it."""
    found = [file(ROOT / "LICENSE", f"/usr/share/doc/{name}/copyright")]
    if staged.is_dir():
        found.append({"src": f"{staged}/", "dst": f"/{PREFIX}", "type": "tree"})
    if bill is not None:
        found.append(file(bill, f"/usr/share/doc/{name}/{name}.cdx.json"))
    if name == "goodput":
        found.append({"src": f"/{PREFIX}/bin/goodput", "dst": "/usr/bin/goodput", "type": "symlink"})
        found.append(file(SYSTEMD / "goodput.sysusers.conf", "/usr/lib/sysusers.d/goodput.conf"))
        found += [file(path, f"/usr/share/man/man1/{path.name}") for path in sorted(man.glob("*.1"))]
        return found
    unit = f"{name}.service"
    found.append(file(SYSTEMD / unit, f"/usr/lib/systemd/system/{unit}"))
    found.append(file(SYSTEMD / f"{name}.default", f"/etc/default/{name}", type="config|noreplace"))
    if name == "goodput-node":
        found.append(file(SYSTEMD / "run-goodput.mount", "/usr/lib/systemd/system/run-goodput.mount"))
        found.append(file(SYSTEMD / "goodput.tmpfiles.conf", "/usr/lib/tmpfiles.d/goodput.conf"))
        scripts = sorted(SLURM.glob("*.sh"))
        found += [file(path, f"/usr/share/goodput/slurm/{path.name}", 0o755) for path in scripts]
    return found


def configuration(name: str, staged: Path, bill: Path | None, scripts: Path) -> dict:
    """nfpm's configuration of a package."""
    own = f"goodput (= {version()})" if name != "goodput" else PYTHON
    rpm_own = f"goodput = {version()}" if name != "goodput" else f"/usr/bin/{PYTHON}"
    given = {"name": name, "version": version(), "platform": "linux", "license": "Apache-2.0"}
    given |= {"arch": ARCHITECTURES.get(platform.machine(), platform.machine()), "section": "admin"}
    given |= {"maintainer": "The goodput authors", "description": DESCRIPTIONS[name]}
    given |= {"homepage": "https://github.com/goodput-telemetry/goodput", "mtime": build_time()}
    given["overrides"] = {"deb": {"depends": [own]}, "rpm": {"depends": [rpm_own]}}
    given["contents"] = contents(name, staged, bill, scripts / "man")
    given["rpm"] = {"buildhost": "localhost"}
    if name == "goodput":
        return given | {"scripts": {"postinstall": str(SCRIPTS / "program.sh")}}
    for step in ("postinstall", "preremove"):
        text = (SCRIPTS / f"{step}.sh").read_text(encoding="utf-8").replace("@UNIT@", f"{name}.service")
        (scripts / f"{name}.{step}").write_text(text, encoding="utf-8")
    return given | {
        "scripts": {step: str(scripts / f"{name}.{step}") for step in ("postinstall", "preremove")}
    }


def build_time() -> str:
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()


def build_packages(folder: Path, wheel: Path, scratch: Path, *, libraries: bool) -> None:
    """Each package in both formats. Without `libraries` they have goodput alone, uncompiled, for tests."""
    program, server = scratch / "goodput" / PREFIX, scratch / "goodput-aggregator" / PREFIX
    bills: dict[str, Path | None] = dict.fromkeys(DESCRIPTIONS)
    for name, environment in (("goodput", program), ("goodput-aggregator", server)):
        if environment is program or libraries:
            make_environment(environment, wheel, EXTRAS[name], libraries=libraries)
            bills[name] = folder / f"{name}-{version()}.cdx.json"
            write_bill(folder / f"{name}-{version()}.cdx.json", environment)
            finish_environment(environment, f"/{PREFIX}", compiled=libraries)
    take_away(server, program)
    write_man_pages(scratch / "man")
    nfpm = Path(sysconfig.get_path("scripts")) / "nfpm"
    for name in DESCRIPTIONS:
        found = configuration(name, scratch / name / PREFIX, bills[name], scratch)
        (scratch / f"{name}.json").write_text(json.dumps(found))
        for packager in ("deb", "rpm"):
            config = ["--config", scratch / f"{name}.json"]
            run(nfpm, "package", *config, "--packager", packager, "--target", folder)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    options.add_argument("--only-wheel", action="store_true", help="no packages")
    options.add_argument("--without-libraries", action="store_true", help="goodput's own files alone")
    given = options.parse_args()
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct").strip()
    os.umask(0o022)  # setuptools writes the modes of files into the wheel.
    given.folder.mkdir(parents=True, exist_ok=True)
    for path in (*given.folder.glob("goodput*.deb"), *given.folder.glob("goodput*.rpm")):
        path.unlink()
    for path in (*given.folder.glob("goodput_telemetry-*.whl"), *given.folder.glob("goodput*.cdx.json")):
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="goodput-packages-") as scratch:
        wheel = build_wheel(given.folder)
        if not given.only_wheel:
            build_packages(given.folder, wheel, Path(scratch), libraries=not given.without_libraries)


if __name__ == "__main__":
    main()
