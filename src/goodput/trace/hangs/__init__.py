"""Evidence of a hang from other tools: dumps of PyTorch's Flight Recorder, and NCCL's RAS."""
