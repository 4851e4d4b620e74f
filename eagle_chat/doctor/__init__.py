"""What is wrong with a pair of target and head, or with the machine, and what to do about it."""
