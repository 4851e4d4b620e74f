"""The browser: the chat page and the draft-tree explorer."""
