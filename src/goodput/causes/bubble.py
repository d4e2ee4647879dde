"""Time in which a pipeline fills and drains."""

STATE = "bubble"
ADVICE = (
    "The pipeline's schedule needs this waiting: use more microbatches per step, fewer stages, or another schedule "
    "(interleaved stages, zero bubble)."
)
