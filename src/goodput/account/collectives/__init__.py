"""Collectives of a run: exposed communication by operation, bandwidths, slow links, and NCCL's RAS."""
