"""Settings of all tests, and their order: files that take long come first, so that no process ends alone with one."""

from pathlib import Path

from hypothesis import HealthCheck, settings

# Of files that take over half a minute with two processes.
LONG = ()

# How fast a strategy makes its values is the machine's affair, on which other tests run meanwhile.
settings.register_profile("shared", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared")
