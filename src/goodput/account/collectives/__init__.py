"""Collectives of a run: exposed communication by operation, bandwidths, slow calls, slow links, and NCCL's RAS."""
