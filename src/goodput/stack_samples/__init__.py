"""Where ranks' main threads are while they are in no phase: stacks sampled from outside with py-spy, counted by line.

`sampler` decides which rank is sampled and when, `py_spy` takes the stacks, `places` counts them, `sample_file` keeps
the counts beside the rank's page, where the agent and local reports read them. The agent samples the ranks of its
node; `beside_run` is the process that does so for one command under `goodput run`.
"""
