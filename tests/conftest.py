"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)  # other processes take their share of a small machine
settings.load_profile("shared")
