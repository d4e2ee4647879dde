"""`goodput top`: the runs of a node or a cluster, live on a terminal.

model.py     what is shown of a run and a rank, from an account document with its `live` ranks
pages.py     documents from the rank pages of this machine; gpus.py adds its agent's figures
api.py       documents from an aggregator's API
trouble.py   what is wrong with a rank
polling.py   reads one of both at intervals, in a thread
view.py      what the user looks at: level, selection, order, filter
draw.py      frame and view -> lines of text; glyphs.py has bars and sparklines
screen.py    the terminal: keys, sizes, signals
"""
