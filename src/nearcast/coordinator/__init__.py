"""The control plane, as a loop: `monitor` → `model` → `detectors` → `goals` → `plan` → `executor`.

`control_loop` drives it, `registry` has the state, `api` answers requests. `leader` builds these for one term,
`leadership` holds the lease.
"""
