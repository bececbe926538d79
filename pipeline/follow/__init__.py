"""The stream: files that keep arriving, each scored once, and what is known of them, batch by batch."""
