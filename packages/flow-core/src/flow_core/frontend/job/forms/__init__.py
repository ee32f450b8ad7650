"""Forms of a job that trade time for memory: their table, and the search for the cheapest one."""
