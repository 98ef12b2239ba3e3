"""The actions: what may be done to a kernel's loops. One file per action or family; `table.py` lists them."""
