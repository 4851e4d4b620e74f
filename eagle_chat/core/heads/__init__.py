"""Draft heads: the two architectures, their draft vocabulary, and their files."""
