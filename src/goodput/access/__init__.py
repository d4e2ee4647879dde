"""Network access: bearer tokens, the token file, TLS certificates and safe listen addresses.

The aggregator and the node agent share these checks. Standard library only.
"""
