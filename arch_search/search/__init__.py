"""Sweeps: a space of layouts, trials in it, and who of them goes on. Optuna's only home."""
