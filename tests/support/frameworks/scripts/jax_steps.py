"""The JAX loop of docs/frameworks.md as it stands there, for test_jax.py: argv is the directory."""

import support.frameworks.framework_runs as runs
from support.frameworks.scripts.documented_loops import code_of

names = {}
exec(code_of("JAX"), names)
names["goodput"].stop()
runs.tell()
