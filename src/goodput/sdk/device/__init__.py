"""The device clock: phases timed by events on the compute stream."""
