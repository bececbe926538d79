"""The stream: files that keep arriving, each scored once, in batches, with a ledger."""
