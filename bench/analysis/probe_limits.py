"""`make probe-limits`: what `goodput probe loader` finds of twelve loaders with a planted limit.

The knee follows from each throttle (tests/support/probe/planted.py); the exit status is 1 if one is found more than a
worker away, or another limit is named.
"""

import sys
from typing import cast

from support.probe.planted import PLANTS, Planted, loader

from goodput.probe.loader import limit
from goodput.probe.loader.probe import Options, probe


def main() -> int:
    wrong = 0
    print(f"{'planted':40}{'limit':>9}{'found':>9}{'knee':>6}{'found':>7}")
    for plant in PLANTS:
        planted = loader(plant)
        try:
            found = probe(planted, Options(plant.workers_max, 0.6))
        finally:
            cast(Planted, planted.dataset).close()
        name, knee = found["limit"]["name"], found["knee"]
        is_right = name == plant.limit and abs(knee - plant.knee) <= 1
        wrong += not is_right
        print(
            f"{plant.name:40}{plant.limit:>9}{name:>9}{plant.knee:>6}{knee:>7}{'' if is_right else '   WRONG'}"
        )
    print(f"{len(PLANTS) - wrong} of {len(PLANTS)} right; rates within {1 - limit.CLOSE:.0%} count as equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
