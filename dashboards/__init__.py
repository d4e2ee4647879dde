"""Grafana dashboards as code, one file per board; built with grafana-foundation-sdk, at build time only.

    fleet.py     goodput / Fleet: what all GPUs did, and which run or node to look at first
    run.py       goodput / Run: where the GPU time of one run goes, and why
    node.py      goodput / Node and GPU: what the hardware under a run does, and what is wrong with it
    host.py      goodput / Host and storage: what a node's loaders, checkpoints and collectives wait for
    rank.py      goodput / Rank: what one rank does, on both clocks, and how it differs from its group
    stack.py     goodput / The stack itself: whether what watches the runs is well, and what it costs
    *_panels.py  their panels, and beside them run_ranks, node_damage, host_placement, stack_trainers
    panels.py    the kinds of panel that the boards are made of
    frame.py     what every board has around them: variables, links, time
    words.py     states and statuses: their colours, and PromQL for the account
    render/      pictures of the boards
    generate.py  writes generated/*.json, which Grafana loads and which is under version control

A board is a module with a function `board()` that returns a dashboard builder; a new file is found by itself. The number
of a panel follows from its place, and alerts link to it (viewPanel): a test says when one leads to another panel.

    python -m dashboards.generate --check
"""
