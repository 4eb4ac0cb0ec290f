"""Where the work of an experiment is done: in this process, or by the processes of a Ray."""
