"""The reports of probes."""
