"""One file per algorithm: groups to samples, rewards to advantages, columns to an objective."""
