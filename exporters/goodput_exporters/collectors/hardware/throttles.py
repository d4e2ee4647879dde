"""How often processors were throttled by heat, from sysfs' thermal_throttle, which Intel's have.

Format: drivers/thermal/intel/therm_throt.c and ABI/stable/sysfs-devices-system-cpu of the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from goodput_exporters.system.files import CounterFiles, parse_count

PROCESSORS_MAX, PACKAGES_MAX = 1024, 64
_PROCESSOR = re.compile(r"cpu\d{1,5}")


class Throttles:
    """Reads each count once: a core's by one of its threads, a package's by one of its cores."""

    def __init__(self, sysfs: str):
        self._root = f"{sysfs}/devices/system/cpu"
        # The names of online processors, and of those that are read: by package, then by core.
        self._online: list[str] = []
        self._packages: dict[int, dict[int, str]] = {}

    def read(self, files: CounterFiles) -> Iterator[tuple]:
        """(series, labels, value) of each package: kind package, and kind core, the sum of its cores'."""
        names = [name for name in files.names(self._root) if _PROCESSOR.fullmatch(name)][:PROCESSORS_MAX]
        # Without the folder of the first one, none has it.
        if not names or not files.names(f"{self._root}/{names[0]}/thermal_throttle"):
            return
        if names != self._online:
            self._online, self._packages = names, self._topology(names, files)
        for package, cores in self._packages.items():
            counts: Counter[str] = Counter()
            for kind, read in (("package", list(cores.values())[:1]), ("core", list(cores.values()))):
                for name in read:
                    path = f"{self._root}/{name}/thermal_throttle/{kind}_throttle_count"
                    count = files.read(path, parse_count)
                    if count is not None:
                        counts[kind] += count
            for kind, count in counts.items():
                yield "goodput_host_cpu_throttles_total", {"package": str(package), "kind": kind}, count

    def _topology(self, names: list[str], files: CounterFiles) -> dict[int, dict[int, str]]:
        found: dict[int, dict[int, str]] = {}
        for name in names:
            path = f"{self._root}/{name}/topology"
            package = files.read(f"{path}/physical_package_id", parse_count)
            core = files.read(f"{path}/core_id", parse_count)
            # An offline processor has no topology.
            if package is not None and core is not None and (package in found or len(found) < PACKAGES_MAX):
                found.setdefault(package, {}).setdefault(core, name)
        return found
