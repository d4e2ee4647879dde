"""Inside an attempt but in no phase."""

STATE = "unattributed"


def advise(account) -> str:
    return (
        "Name this time: if it is a loop that waits for a plain iterator or generator, write "
        "`for batch in goodput.loader(iterable)`; put goodput.phase(name, state=...) around what else happens between "
        "the phases."
    )
