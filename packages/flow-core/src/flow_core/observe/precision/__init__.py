"""``flow verify --precision``: errors of mixed precision, and the ops to keep in float32."""
