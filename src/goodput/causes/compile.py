"""Compilation and the first step's extra work."""

STATE = "compile"
ADVICE = (
    "Keep the compile cache on storage that survives restarts and avoid shapes that change, so that restarts "
    "do not compile again."
)
