"""The JAX loop of docs/frameworks.md as it stands there, for test_jax.py: argv is the directory."""

import support.frameworks.script_helpers as helpers
from support.frameworks.scripts.documented_loops import code_of

names = {}
exec(code_of("JAX"), names)
names["goodput"].stop()
helpers.print_result()
