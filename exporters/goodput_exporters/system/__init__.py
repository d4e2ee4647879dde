"""Readers of procfs, sysfs and control groups that several collectors share."""
