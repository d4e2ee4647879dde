"""Means with confidence intervals, and changes of level, of series whose values are alike in a row, such as steps."""
