"""Variables, update rules and learning-rate schedules."""
