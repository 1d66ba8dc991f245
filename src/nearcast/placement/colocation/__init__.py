"""Which topics share a worker: a learned 90th percentile latency, and planners that use few workers and keep
every topic within its bound (Khare et al., Scalable Edge Computing for Low Latency Data Dissemination).

The paper's "worker" is one worker process here; plans call it a worker, as the paper does.
"""
