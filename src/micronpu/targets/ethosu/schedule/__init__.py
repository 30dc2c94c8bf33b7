"""When the two engines of an Ethos-U work: its operations, and the transfers that bring them their weights."""
