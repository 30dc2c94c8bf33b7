"""One module for each network; each defines `NETWORK`."""
