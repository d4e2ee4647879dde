"""What a change would be worth: the recorded steps of a run, replayed with other times of some ranks and states."""
