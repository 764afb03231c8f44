"""Which labels are wrong: evidence over rounds, estimates, the page, relabelling."""
