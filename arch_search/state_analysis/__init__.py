"""What states do through time, and what can be done about it (after arXiv 2410.07145)."""
