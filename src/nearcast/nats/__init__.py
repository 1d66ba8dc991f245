"""NATS, each thing once: connections, subjects, stamps, requests, key-value buckets, streams, leases, tasks."""
