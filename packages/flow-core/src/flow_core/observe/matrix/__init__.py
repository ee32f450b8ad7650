"""``flow verify --matrix``: a job in all forms, each compared with one device."""
