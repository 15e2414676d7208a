"""Synthetic tasks: one file and one registry line each, to train on and to evaluate."""
