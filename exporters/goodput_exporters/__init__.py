"""The node agent: reads the node's rank pages and counters, serves `/metrics`, pushes one report per node.

    collectors/     one source of series per file, found by the folder it lies in
    rank.py         one followed page: what is new in it, whether its process lives
    rank_series.py  the series of one rank
    processes.py    which process of this node a page means, and whose it is (cgroup.py, pods.py)
    statvfs.py      asks file systems how full they are, without waiting for one that is dead
    lane.py         runs the collectors of a scrape: times them, counts their errors, survives their hanging
    backlog.py      step rows and events that the aggregator has not acknowledged
    push.py         sends them
    stacks.py       the stack of a rank that hangs, when the aggregator asks and it is allowed
    lock.py         one agent per page directory
    text.py         writes all series out
    agent.py        ties the above together
    server.py       HTTP

It may use goodput's page, page_reader, identity, histogram, schema and metrics, and nothing else of goodput.
It does not know the account: it reports what the pages say and leaves every judgement to the aggregator.

    agent = Agent("/dev/shm/goodput", aggregator="http://127.0.0.1:9471")
    server = Server(agent.exposition, agent.health, ("127.0.0.1", 0))
    agent.start(); server.start(); ...; server.stop(); agent.stop()
"""
