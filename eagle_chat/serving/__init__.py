"""Our engine as a server, other engines started with our heads, and a client for any of them."""
