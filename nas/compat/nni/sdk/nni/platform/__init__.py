"""Replies to the requests of a trial that no job has started."""
