"""How a task becomes rollouts: one coroutine function per file, written once for every generator."""
