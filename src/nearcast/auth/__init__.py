"""Who may do what: roles and their subjects, the folder of keys, certificates."""
