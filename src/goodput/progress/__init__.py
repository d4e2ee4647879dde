"""How far a run is, and how long it will still take, for `goodput top` and for the line that `goodput run` shows.

estimate.py       progress of a run, from its account document
line.py           as one line of text
local_runs.py     account documents of the runs whose rank pages are on this machine
beside_run.py     the process beside `goodput run`: terminal_line.py draws, kubeflow.py reports
"""

KUBEFLOW_URL = "KUBEFLOW_TRAINER_SERVER_URL"  # see kubeflow.py
