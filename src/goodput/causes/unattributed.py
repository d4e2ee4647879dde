"""Time of an attempt outside any phase."""

STATE = "unattributed"
ADVICE = (
    "Name this time: for a loop over a plain iterator or generator, write `for batch in "
    "goodput.loader(iterable)`; wrap other work between phases in goodput.phase(name, state=...)."
)
