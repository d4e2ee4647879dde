"""Grafana dashboards as code, one file per board; built with grafana-foundation-sdk, at build time only.

    run.py          goodput / Run: where the GPU time of one run goes, and why
    node.py         goodput / Node and GPU: what the hardware under a run does, and what is wrong with it
    node_panels.py  its panels
    panels.py       the kinds of panel that the boards are made of
    generate.py     writes generated/*.json, which Grafana loads and which is under version control

A board is a module with a function `board()` that returns a dashboard builder; a new file is found by itself.

    python -m dashboards.generate --check
"""
