"""Other engines on the same questions, each as a process in its own environment."""
