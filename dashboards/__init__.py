"""Reports and pages over what was tracked."""
