"""The memory of a step: what it holds, as measured, and forms of a job that need less."""
