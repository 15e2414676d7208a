"""Sequence mixers, one file each, registered by name in `blocks.registry`."""
