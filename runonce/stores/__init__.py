"""Storage: the protocols the toolkit is written against, and their implementations."""
