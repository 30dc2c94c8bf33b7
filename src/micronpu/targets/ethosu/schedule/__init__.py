"""Schedules of the two engines of an Ethos-U: operations, and transfers of their weights."""
