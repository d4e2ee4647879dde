"""Which pods have which GPUs, from the kubelet."""
