"""Tuners that are told which job asks."""
