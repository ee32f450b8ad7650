"""The errors of flow-rules."""


class RulesError(Exception):
    """A file of rules is not valid, or an evaluator does not do what it must."""
