"""Files and folders: locks, scratch space, outputs that appear atomically. Nothing here depends on their content."""
