"""The ground: what every room may stand on, and what knows nothing of networks."""
