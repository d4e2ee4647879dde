"""Steps as NumPy columns: attempts that hold them, and the account folded over them.

A fold is what is known of one attempt's steps so far: its sums by state, and the last row (account.fold.Fold). For the
aggregator and long run logs.
"""
