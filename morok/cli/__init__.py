"""The `morok` command: one module per subcommand, found through the table in `main`."""
