"""A ranking of methods over settings: the grid of runs, what they came to, and how it is shown."""
