"""Many configurations as one plan: in this process, in several, or on a Ray cluster."""
