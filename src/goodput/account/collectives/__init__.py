"""Exposed communication divided among the operations of process groups."""
