"""The model: the registry and the last reports as one immutable snapshot in NumPy columns.

`build_model` makes it from the registry and the last reports, `problems` turns it into the planners' problems.
"""

from nearcast.coordinator.model.model import ClientColumns, Model, SiteColumns, TopicColumns, WorkerColumns

__all__ = ["ClientColumns", "Model", "SiteColumns", "TopicColumns", "WorkerColumns"]
