"""One run on disk: its folder, its journal, where it came from, and what can be read, repaired or repeated from them."""
