"""Drivers, workers and jobs on Ray: the only place that knows Ray."""
