"""Checks that a job resumes from a checkpoint on other numbers of devices."""
