"""The host side of an Ethos-U: simulator, executor of streams, verification, disassembly."""
