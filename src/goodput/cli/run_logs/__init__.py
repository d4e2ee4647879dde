"""What commands that read run logs share: finding the log of a run, and printing its account."""
