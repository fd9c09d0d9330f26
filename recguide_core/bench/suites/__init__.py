"""Suites: fixed sets of runs that answer one question each, as one record."""
