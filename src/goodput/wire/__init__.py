"""What crosses a process: the records of a report, and the identity of a rank."""
