"""What a run logs, and where."""
