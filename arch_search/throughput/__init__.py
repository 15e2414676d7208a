"""The throughput lane: how fast arms train, read a prompt and decode, on a device of their own.

`settings` and `record` are free of torch; `lane` measures, in the process that calls it.
"""

WHERE_MEMORY = "arch_search.throughput.memory:runs_that_fit"
"""What a worker calls to measure how many runs share a GPU."""
