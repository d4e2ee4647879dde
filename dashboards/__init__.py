"""Grafana dashboards as code, one file per board; built with grafana-foundation-sdk, at build time only.

    fleet.py     goodput / Fleet: what all GPUs did, and which run or node to look at first
    run.py       goodput / Run: where the GPU time of one run goes, and why
    node.py      goodput / Node and GPU: what the hardware under a run does, and what is wrong with it
    host.py      goodput / Host and storage: what a node's loaders, checkpoints and collectives wait for
    rank.py      goodput / Rank: what one rank does, on both clocks, and how it differs from its group
    stack.py     goodput / The stack itself: whether what watches the runs is well, and what it costs
    panels.py    the kinds of panel that the boards are made of
    board_builder.py   what every board has around them: variables, links, time
    states.py    states and statuses: their colours, and PromQL for the account
    render/      pictures of the boards
    generate.py  writes generated/*.json, which Grafana loads and which is under version control

A board is a module with a function `board()`; a new file is found by itself. A panel is one function below `@PANELS.add`.
Its number follows from its place, and alerts link to it (viewPanel); `make dashboards` updates both.

    python -m dashboards.generate --check
"""
