"""Steps that had to be done again."""

STATE = "lost"


def advise(account) -> str:
    steps = sum(rank.lost_steps for rank in account.ranks)
    restarts = len(account.restarts)
    return (
        f"{steps} rank-steps were lost in {restarts} restart{'s' * (restarts != 1)}: save checkpoints more often "
        "(they are cheap if asynchronous), and find what ended the run."
    )
