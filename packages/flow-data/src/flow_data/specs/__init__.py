"""What the ops of flow-data mean: schema, inference, SBP rules and gradients."""
