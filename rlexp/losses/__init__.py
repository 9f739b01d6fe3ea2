"""Policy losses, one file each, and the terms and scales they share."""
