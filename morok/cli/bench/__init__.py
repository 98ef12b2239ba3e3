"""`morok bench`: the speed of compiled code beside every peer that is installed, and beside the machine."""
