"""What tells of a hang from outside of goodput: dumps of PyTorch's Flight Recorder, and NCCL's RAS."""
