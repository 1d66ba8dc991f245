"""`python -m nearcast.site.worker`: the agent starts a worker this way."""

from nearcast.site.worker.worker import main

if __name__ == "__main__":
    main()
