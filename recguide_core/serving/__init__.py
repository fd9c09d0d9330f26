"""An OpenAI-compatible HTTP server over the embedded engine, and its playground page."""
