"""The recorder: charges every nanosecond of the step thread to the phase it is in."""
