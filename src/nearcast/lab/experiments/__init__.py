"""The experiments of the five papers: each is points × seeds → metrics, with claims that are judged on the metrics.

`experiment` says what one is, `sweep` runs its tasks, `results` estimates with confidence intervals, `figure` draws,
`page` writes the results beside the papers'. `catalog` names them all.
"""
