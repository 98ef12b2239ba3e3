"""The viewer: a run as one page, from the user's lines through every rewrite to assembly and roofline."""
