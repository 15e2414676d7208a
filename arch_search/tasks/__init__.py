"""Evaluations: one file and one registry line each."""
