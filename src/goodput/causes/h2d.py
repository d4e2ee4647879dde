"""Copies to the device that steps wait for."""

STATE = "h2d"
ADVICE = (
    "Copy while computing: pin host memory (pin_memory=True), copy with non_blocking=True, and fetch the "
    "next batch one step ahead."
)
