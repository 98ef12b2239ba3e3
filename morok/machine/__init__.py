"""What a compiler must know of the chips that it compiles for: facts and rates, one data file per machine."""
