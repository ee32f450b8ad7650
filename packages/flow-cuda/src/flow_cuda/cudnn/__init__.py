"""cuDNN: problems, plans, and the ops that stand for them."""
