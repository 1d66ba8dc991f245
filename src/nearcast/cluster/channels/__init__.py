"""Parameterised queries: validated, rewritten for all subscriptions at once, evaluated, their results published."""
