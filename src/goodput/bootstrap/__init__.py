"""The folder that `goodput run` puts in front of PYTHONPATH: see sitecustomize.py."""
