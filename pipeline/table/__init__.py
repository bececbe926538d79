"""What is published: lookup tables, plain and of segments, the store that keeps them, and which run made what."""
