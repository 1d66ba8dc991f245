"""A site's agent: answers clients, keeps the store's streams, runs topics in workers, reports to the coordinator."""
