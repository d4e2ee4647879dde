"""Grafana dashboards as code, one file per board; built with grafana-foundation-sdk, at build time only.

    fleet.py     goodput / Fleet: what all GPUs did, and which run or node to look at first
    run.py       goodput / Run: where the GPU time of one run goes, and why
    node.py      goodput / Node and GPU: what the hardware under a run does, and what is wrong with it
    host.py      goodput / Host and storage: what a node's loaders, checkpoints and collectives wait for
    rank.py      goodput / Rank: what one rank does, on both clocks, and how it differs from its group
    stack.py     goodput / The stack itself: whether agents, aggregator and SDK work, and what they cost
    panels.py    the kinds of panel, and the overrides of single series or columns
    promql.py    PromQL that several boards share
    clusters.py  limits every query to the chosen cluster
    states.py    colours of states and statuses, and common thresholds
    board_builder.py   what every board has around its panels: layout, variables, links, time range
    render/      pictures of the boards
    rows.py      the panels of a board's JSON, those of collapsed rows too
    generate.py  writes generated/*.json, which Grafana loads and which is under version control

A board is a module with a `BOARD`, a list of panels and the layout of its rows; generate.py finds new modules itself.
Alerts link to a panel by its number (viewPanel), which follows from its place; `make dashboards` updates both.

    python -m dashboards.generate --check
"""

import warnings

# The SDK prefers the newer model of a board, which Grafana before version 12 cannot load.
warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
