"""Tuning: from a cost table and a trace to the policy file that serve and bench load."""
