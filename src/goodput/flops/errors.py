"""The error of a model that cannot be counted."""


class FlopCountError(Exception):
    """The model cannot be counted; the message gives the reason. The model was not changed."""
