"""What runs in the trainer. It only writes to memory: it never waits, starts no thread and opens no socket.

`recorder/` charges the step thread's time to phases in the rank page; its hot path is compiled where Python's headers are.
`startup/` opens the page under the right identity. `device/` puts the same boundaries on the device's clock.
`automatic/` finds steps and evaluation in what a framework calls; `automatic/frameworks/` has one file per patch.
`reports/` has the account and the windows of one process.
"""
