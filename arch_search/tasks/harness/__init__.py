"""lm-evaluation-harness on our models: its tasks, its scores, our tokens and states."""
