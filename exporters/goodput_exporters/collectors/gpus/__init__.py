"""GPUs of this node, merged over their drivers."""
