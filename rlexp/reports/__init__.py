"""Reading run folders: the page about one run, and the table of many. No torch, and nothing here changes a run."""
