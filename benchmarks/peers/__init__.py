"""The peers, each measured in a process of its own, and micronpu in the same way."""
