"""nld-tiny: the bundled model, its corpus, its training recipe and its card."""
