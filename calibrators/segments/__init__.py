"""Maps of many segments: isotonic regression of groups, and partial pooling."""
