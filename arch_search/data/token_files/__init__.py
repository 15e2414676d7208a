"""Token files that people have already, read where they lie."""
