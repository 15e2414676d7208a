"""The throughput lane: how fast arms train, read a prompt and decode, on a device of their own.

`settings` and `record` are free of torch; `lane` measures, in the process that calls it.
"""
