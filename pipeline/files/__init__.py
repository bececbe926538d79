"""Files and folders, whatever is in them: locks, scratch space, outputs that appear whole. Knows nothing of logs."""
