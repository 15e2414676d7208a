"""Which differences are real: one linear model, simultaneous intervals, what could be resolved."""
