"""Steps as NumPy columns: attempts that hold them, and the account folded over them.

For the aggregator and long run logs.
"""
