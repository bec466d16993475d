"""Settings of a session, read from the configuration, by topic."""
