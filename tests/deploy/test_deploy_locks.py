"""The lock files of the images: all that the extras need, by versions that pyproject.toml allows, with hashes."""

import importlib.metadata
import importlib.util
import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.deploy.deploy_words import DEPLOY
from support.servers import servers

CONTAINER = DEPLOY / "container"
IMAGES = [path.stem for path in sorted(CONTAINER.glob("*.Containerfile"))]


@pytest.fixture(scope="module")
def lock():
    spec = importlib.util.spec_from_file_location("lock", CONTAINER / "lock.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """By name of a package its version and hashes."""
    text = re.sub(r"\\\n", " ", (CONTAINER / f"{name}.lock").read_text())
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            package, version, hashes = re.fullmatch(
                r"([a-z0-9-]+)==(\S+)((?: +--hash=\S+)+) *", line
            ).groups()
            found[package] = (version, hashes.split())
    return found


def of_project() -> list[Requirement]:
    """The requirements of pyproject.toml, which an editable installation's metadata may lag behind."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((servers.REPOSITORY / "pyproject.toml").read_text())["project"]
    listed = [Requirement(one) for one in project["dependencies"]]
    for extra, lines in project["optional-dependencies"].items():
        for line in lines:
            one = Requirement(line)
            marker = f"({one.marker}) and " if one.marker else ""
            one.marker = Requirement(f"a; {marker}extra == '{extra}'").marker
            listed.append(one)
    return listed


def needed(
    requirements: list[Requirement], extras: list[str], environment: dict[str, str]
) -> list[Requirement]:
    found = []
    for one in requirements:
        if one.marker is None or any(one.marker.evaluate({**environment, "extra": e}) for e in ["", *extras]):
            if one.name == "goodput-telemetry":
                found += needed(requirements, sorted(one.extras), environment)
            else:
                found.append(one)
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_lock_file_covers_the_extras(lock, image):
    """And what their packages need in turn, for those of which the locked version is installed here."""
    text = (CONTAINER / f"{image}.Containerfile").read_text()
    versions = locked(image)
    environment = default_environment() | {
        "python_version": lock.python(text),
        "python_full_version": f"{lock.python(text)}.0",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
    }
    project = of_project()
    extras = lock.extras(text)
    known = {extra for one in project for extra in re.findall(r"extra == [\"'](\w+)", str(one.marker))}
    assert set(extras) <= known
    waiting = needed(project, extras, environment)
    seen, looked_into = set(), 0
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        assert name in versions, f"{one}: make lock"
        assert one.specifier.contains(versions[name][0], prereleases=True), f"{one}: make lock"
        if (name, *sorted(one.extras)) in seen:
            continue
        seen.add((name, *sorted(one.extras)))
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version == versions[name][0]:
            looked_into += 1
            own = [Requirement(line) for line in installed.requires or ()]
            waiting += needed(own, sorted(one.extras), environment)
    assert looked_into > len(versions) / 3, "too few of the locked versions are installed to tell"


@pytest.mark.parametrize("name", [*IMAGES, "build"])
def test_every_package_has_hashes(name):
    found = locked(name)
    assert found and all(
        hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
        for _, hashes in found.values()
    )


def test_the_build_is_that_of_the_packages():
    project = (servers.REPOSITORY / "pyproject.toml").read_text()
    found = locked("build")
    assert found.keys() == {"setuptools", "ziglang"}
    for name, (version, _) in found.items():
        assert f'"{name}=={version}",' in project


@pytest.mark.parametrize("image", IMAGES)
def test_image_installs_nothing_but_what_is_locked(image):
    text = re.sub(r"\\\n", " ", (CONTAINER / f"{image}.Containerfile").read_text())
    calls = re.findall(r"/bin/pip (.*?)(?: &&|\n)", text)
    assert len(calls) == 4
    for call in calls:
        (name,) = re.findall(r"--require-hashes -r deploy/container/([a-z]+)\.lock", call) or [None]
        if name is None:
            # From the wheel that was built, or that wheel itself, without its dependencies and nothing that builds it.
            assert "--no-index" in call or {"--no-deps", "--no-build-isolation"} <= {*call.split()}, call
        else:
            assert name in (image, "build")
