"""``flow replay``: recorded steps that run again, with the values of all ops."""
