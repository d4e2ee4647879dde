"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How fast a strategy makes its values is the machine's affair, on which other tests run meanwhile.
settings.register_profile("shared", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared")
