"""Making draft heads: text, features, the training-time test, and the published layout. Uses `core` only."""
