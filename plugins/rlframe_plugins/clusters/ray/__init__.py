"""Worker processes as Ray actors in placement groups, on one machine or many."""
