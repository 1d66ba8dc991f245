"""The control plane, as a loop: `monitor → model → detectors → goals → plan → executor`.

`registry` keeps what is known about sites, topics and clients in the cloud's store, `lease` lets one coordinator lead.
"""
