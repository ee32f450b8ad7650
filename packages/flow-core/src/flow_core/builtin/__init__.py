"""What comes with the core, each part loaded as a plugin by name."""
