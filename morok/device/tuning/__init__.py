"""What a search needs of a device: candidates compiled and timed by processes that can be killed."""
