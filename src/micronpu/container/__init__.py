"""The open program that runs on a host, and the head of a payload.  Families share it."""
