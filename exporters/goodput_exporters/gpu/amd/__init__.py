"""AMD GPUs through sysfs and amdsmi."""
