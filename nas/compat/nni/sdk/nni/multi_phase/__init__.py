"""Tuners that receive the id of the job that asks."""
