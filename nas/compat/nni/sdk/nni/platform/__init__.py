"""Who answers a trial's questions where no job has started it."""
