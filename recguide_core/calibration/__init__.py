"""Calibration: what every block size would have accepted, and the tables fitted to it."""
